"""Linear algebra, distances, sampled images and sparse products against the counts of the literature."""

import functools
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpu_profile.roofline.counting.counter import Counting  # noqa: E402
from gpu_profile.roofline.counting.dry_run import count_without_running  # noqa: E402
from gpu_profile.roofline.counting.registry import formula  # noqa: E402
from gpu_profile.roofline.precision import Precision  # noqa: E402
from gpu_profile.roofline.work import Work  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
F = torch.nn.functional
linalg = torch.linalg
call = functools.partial
N, M, K = 30, 60, 7
SQUARE = torch.eye(N) * N + torch.ones(N, N)
TALL, RIGHT, BATCH = torch.ones(M, N), torch.ones(N, K), SQUARE.expand(4, N, N)
POINTS, OTHERS = torch.ones(40, 16), torch.ones(50, 16)
IMAGE, VOLUME = torch.ones(2, 3, 9, 9), torch.ones(2, 3, 9, 9, 9)
GRID, GRID_3D = torch.zeros(2, 5, 4, 2), torch.zeros(2, 5, 4, 6, 3)


def counted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Work:
    with Counting(share=inf) as counting:
        function(*args, **kwargs)
    return counting.work()


CASES: dict[str, tuple[functools.partial[Any], float]] = {
    "cholesky": (call(linalg.cholesky, SQUARE), N**3 / 3),
    "cholesky of a batch": (call(linalg.cholesky, BATCH), 4 * N**3 / 3),
    "cholesky of a batch, rounded once": (call(linalg.cholesky, torch.eye(2).expand(100, 2, 2)), 100 * 2**3 / 3),
    "cholesky_solve": (call(torch.cholesky_solve, RIGHT, SQUARE), 2 * N * N * K),
    "cholesky_inverse": (call(torch.cholesky_inverse, SQUARE), 2 * N**3 / 3),
    "lu, unpacked": (call(torch.lu_unpack, SQUARE, torch.ones(N, dtype=torch.int32)), 0),
    "diag_embed": (call(torch.diag_embed, SQUARE), 0),
    "lu_factor": (call(linalg.lu_factor, SQUARE), 2 * N**3 / 3),
    "lu of a tall matrix": (call(linalg.lu, TALL), M * N**2 - N**3 / 3),
    "lu of a wide matrix": (call(linalg.lu, TALL.T), M * N**2 - N**3 / 3),
    "det": (call(linalg.det, SQUARE), 2 * N**3 / 3),
    "solve": (call(linalg.solve, SQUARE, RIGHT), 2 * N**3 / 3 + 2 * N * N * K),
    "solve of a vector": (call(linalg.solve, SQUARE, RIGHT[:, 0]), 2 * N**3 / 3 + 2 * N * N),
    "solve from the right": (call(linalg.solve, SQUARE, RIGHT.T, left=False), 2 * N**3 / 3 + 2 * N * N * K),
    "solve of a batch": (call(linalg.solve, BATCH, RIGHT.expand(4, N, K)), 4 * (2 * N**3 / 3 + 2 * N * N * K)),
    "inv": (call(linalg.inv, SQUARE), 2 * N**3),
    "solve_triangular": (call(linalg.solve_triangular, SQUARE, RIGHT, upper=True), N * N * K),
    "qr": (call(linalg.qr, TALL), 2 * (2 * M * N**2 - 2 * N**3 / 3)),
    "qr, R alone": (call(linalg.qr, TALL, mode="r"), 2 * M * N**2 - 2 * N**3 / 3),
    "qr, complete": (
        call(linalg.qr, TALL, mode="complete"),
        2 * M * N**2 - 2 * N**3 / 3 + 4 * M * M * N - 4 * M * N**2 + 4 * N**3 / 3,
    ),
    "svd": (call(linalg.svd, SQUARE), 21 * N**3),
    "svd of a wide matrix": (call(linalg.svd, TALL.T, full_matrices=False), 6 * M * N**2 + 20 * N**3),
    "svdvals": (call(linalg.svdvals, SQUARE), 4 * N**3 - 4 * N**3 / 3),
    "eigh": (call(linalg.eigh, SQUARE), 9 * N**3),
    "eigvalsh": (call(linalg.eigvalsh, SQUARE), 4 * N**3 / 3),
    "eig": (call(linalg.eig, SQUARE), 79 * N**3 / 3),
    "eigvals": (call(linalg.eigvals, SQUARE), 10 * N**3),
    "svd as a method": (call(TALL.svd), 6 * M * N**2 + 20 * N**3),
    "svd as a function, values alone": (call(torch.svd, SQUARE, compute_uv=False), 4 * N**3 - 4 * N**3 / 3),
    "cdist": (call(torch.cdist, POINTS, OTHERS), 2 * 40 * 50 * (16 + 2) + 2 * (40 + 50) * 16 + 2 * 40 * 50),
    "cdist by pairs": (call(torch.cdist, POINTS[:9], OTHERS[:8]), 3 * 9 * 8 * 16),
    "cdist by sums": (call(torch.cdist, POINTS, OTHERS, p=1), 40 * 50 * (3 * 16 - 1)),
    "cdist of another power": (call(torch.cdist, POINTS, OTHERS, p=3), 40 * 50 * 4 * 16),
    "pdist": (call(F.pdist, POINTS), 40 * 39 // 2 * 3 * 16),
    "grid_sample": (call(F.grid_sample, IMAGE, GRID, align_corners=False), 2 * 20 * (3 * 7 + 22)),
    "grid_sample, nearest": (call(F.grid_sample, IMAGE, GRID, mode="nearest", align_corners=False), 2 * 20 * 10),
    "grid_sample, bicubic": (
        call(F.grid_sample, IMAGE, GRID, mode="bicubic", align_corners=False),
        2 * 20 * (3 * 31 + 66),
    ),
    "grid_sample of a volume": (call(F.grid_sample, VOLUME, GRID_3D, align_corners=False), 2 * 120 * (3 * 15 + 55)),
    "affine_grid": (
        call(F.affine_grid, torch.ones(2, 2, 3), [2, 1, 4, 5], align_corners=False),
        2 * (2 * 4 * 5 * 2) * 3,
    ),
    "bilinear": (
        call(F.bilinear, torch.ones(5, 6), torch.ones(5, 7), torch.ones(4, 6, 7)),
        2 * (5 * 4 * 6 * 7) + 2 * (5 * 4 * 7),
    ),
    "bilinear of no rows": (call(F.bilinear, torch.ones(0, 6), torch.ones(0, 7), torch.ones(4, 6, 7)), 0),
}


#: In a run, PyTorch computes the same for these and for functions that need values alone.
UNSURE_IN_A_RUN = {
    "svd of a wide matrix",
    "svdvals",
    "eigh",
    "eigvalsh",
    "eig",
    "eigvals",
    "svd as a method",
    "svd as a function, values alone",
}


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_of_the_literature_beside_the_run_and_in_it(name: str) -> None:
    function, flops = CASES[name]
    work = count_without_running(function)
    assert work is not None
    assert (work.flops, work.unknown) == (round(flops), {})
    assert work.bytes is not None
    in_run = counted(function)
    if name in UNSURE_IN_A_RUN:
        assert (in_run.flops, in_run.bytes) == (None, None)
    else:
        assert (in_run.flops, in_run.bytes) == (work.flops, work.bytes)


def test_vectors_that_counting_may_have_caused_are_unknown_with_the_reason() -> None:
    why = "aten._linalg_svd may compute vectors only because of the counting: register a formula for it"
    for function in (call(linalg.matrix_norm, ord=2), call(linalg.norm, ord="nuc"), linalg.cond, linalg.matrix_rank):
        for work in (count_without_running(function, (SQUARE,)), counted(function, SQUARE)):
            assert work is not None
            assert (work.flops, work.bytes, work.unknown) == (None, None, {"aten._linalg_svd": 1})
            assert work.reasons["flops"].split("; ")[0] == work.reasons["bytes"] == why
    assert counted(linalg.matrix_rank, SQUARE, hermitian=True).flops is None
    both = counted(lambda: (linalg.eigh(SQUARE), linalg.pinv(SQUARE)))
    assert both.reasons["flops"].startswith("no formula for aten.linalg_pinv and aten._linalg_eigh may compute ")


def test_values_alone_in_a_run_and_whole_matrices_are_known() -> None:
    assert counted(torch.ops.aten._linalg_svd, SQUARE, compute_uv=False).flops == 4 * N**3 - 4 * N**3 // 3
    assert counted(torch.ops.aten._linalg_eigh, SQUARE, compute_v=False).flops == 4 * N**3 // 3
    assert counted(lambda: linalg.svd(SQUARE)).flops == 21 * N**3


def test_gradients_need_vectors() -> None:
    wanted = SQUARE.clone().requires_grad_()
    cases = ((linalg.svdvals, 21 * N**3), (linalg.eigvalsh, 9 * N**3), (linalg.eigvals, 79 * N**3 // 3))
    for function, flops in cases:
        work = count_without_running(function, (wanted,))
        assert work is not None
        assert work.flops == flops
        with torch.no_grad():
            without = count_without_running(function, (wanted,))
        assert without is not None
        assert without.flops is not None
        assert without.flops < flops


def test_complex_matrices_count_four_times_as_much() -> None:
    complex_square = SQUARE.to(torch.complex64)
    assert counted(linalg.inv, complex_square).flops == 4 * 2 * N**3
    assert counted(linalg.solve, complex_square, complex_square).flops == 4 * (2 * N**3 // 3 + 2 * N**3)


def test_bytes_are_the_matrix_and_the_results() -> None:
    assert counted(linalg.solve_triangular, SQUARE, RIGHT, upper=True).bytes == 4 * (N * N + 2 * N * K)
    assert counted(torch.cdist, POINTS, OTHERS).bytes == 4 * (40 * 16 + 50 * 16 + 40 * 50)


def test_of_an_image_only_the_sampled_elements_are_read() -> None:
    few = torch.zeros(2, 1, 1, 2)
    assert counted(F.grid_sample, IMAGE, few, align_corners=False).bytes == 4 * (6 * 4 + 4 + 6)
    cubic = counted(F.grid_sample, IMAGE, GRID, mode="bicubic", align_corners=False)
    assert cubic.bytes == 4 * (2 * 3 * 81 + 80 + 120)  # 16 each would be more than all


@pytest.mark.parametrize("weights", [True, False])
def test_fused_attention_is_its_linear_layers_and_the_attention(weights: bool) -> None:
    width, heads, length, batch = 32, 4, 10, 3
    layer = torch.nn.MultiheadAttention(width, heads, batch_first=True).eval()
    x = torch.ones(batch, length, width)
    with torch.no_grad():
        work = counted(layer, x, x, x, need_weights=weights)
    assert work.operations == 1
    linear = batch * length * (8 * width**2 + 4 * width)
    averaged = batch * heads * length**2 if weights else 0
    assert work.flops == linear + 4 * batch * length**2 * width + averaged
    assert dict(work.by_precision) == {Precision.FP32: work.flops}


def test_a_fused_encoder_layer_counts_what_its_parts_count() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.ones(3, 10, 32)
    with torch.no_grad():
        fused = counted(layer, x)
    parts = counted(layer.train(False), x.requires_grad_())
    assert fused.operations == 1 < parts.operations
    assert fused.flops == pytest.approx(parts.flops, rel=0.02)


def test_a_fused_encoder_layer_of_empty_sequences_does_nothing() -> None:
    encode = torch.ops.aten._transformer_encoder_layer_fwd
    given = {"src": torch.ones(3, 0, 32), "embed_dim": 32, "num_heads": 4}
    weights = {"qkv": (96, 32), "proj": (32, 32)}
    for name, shape in weights.items():
        given |= {f"{name}_weight": torch.ones(shape), f"{name}_bias": torch.ones(shape[0])}
    for number, shape in ((1, (64, 32)), (2, (32, 64))):
        given |= {f"ffn_weight_{number}": torch.ones(shape), f"ffn_bias_{number}": torch.ones(shape[0])}
        given |= {f"norm_weight_{number}": torch.ones(32), f"norm_bias_{number}": torch.ones(32)}
    settings = {"use_gelu": False, "norm_first": False, "eps": 1e-5}
    assert counted(encode, **given, **settings).flops == 0


# ---------------------------------------------------------------------- sparse tensors

EYE = torch.eye(N)
LAYOUTS: dict[str, Callable[[], Any]] = {
    "coo": EYE.to_sparse,
    "csr": EYE.to_sparse_csr,
    "csc": EYE.to_sparse_csc,
    "bsr": lambda: EYE.to_sparse_bsr((1, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_with_a_sparse_matrix_count_its_stored_elements(layout: str) -> None:
    sparse = LAYOUTS[layout]()
    work = counted(torch.mm, sparse, RIGHT)
    assert (work.flops, work.unknown, work.working_set) == (2 * N * K, {}, None)
    indices = 2 * N if layout == "coo" else N + N + 1
    assert work.bytes == 4 * (N + 2 * N * K) + 8 * indices
    assert dict(work.by_precision) == {Precision.FP32: 2 * N * K}


def test_other_products_of_sparse_matrices() -> None:
    coo, csr = EYE.to_sparse(), EYE.to_sparse_csr()
    assert counted(torch.mv, csr, RIGHT[:, 0]).flops == 2 * N
    assert counted(torch.mm, RIGHT.T, csr).flops == 2 * N * K
    assert counted(torch.sparse.mm, coo, RIGHT).flops == 2 * N * K
    assert counted(torch.sparse.addmm, RIGHT, coo, RIGHT).flops == 2 * N * K + N * K
    assert counted(torch.mm, coo.to(torch.complex64), RIGHT.to(torch.complex64)).flops == 8 * N * K
    assert counted(torch.sparse.sampled_addmm, csr, RIGHT, RIGHT.T).flops == 2 * N * K + N
    assert counted(csr.to_dense).flops == 0


def test_work_that_depends_on_the_places_of_the_elements_stays_unknown() -> None:
    coo, csr = EYE.to_sparse(), EYE.to_sparse_csr()
    for function, args in ((torch.sparse.mm, (coo, coo)), (torch.mm, (csr, csr)), (torch.add, (coo, coo))):
        work = counted(function, *args)
        assert work.flops is None
        assert work.reasons["flops"].startswith("no formula for aten.")
        assert work.bytes is not None


def test_what_is_unknown_has_no_formula() -> None:
    names = ("linalg_lstsq", "linalg_pinv", "linalg_matrix_exp", "_cdist_backward", "grid_sampler_2d_backward")
    assert not any(formula(f"aten.{name}") for name in names)
