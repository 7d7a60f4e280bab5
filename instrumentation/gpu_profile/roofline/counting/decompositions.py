"""Floating-point operations of linear algebra beyond products: decompositions, solutions, inverses. Pure.

The counts are the leading terms of the usual algorithms, for real matrices; complex ones count four times as much.
Libraries may choose other algorithms, and iterations depend on the data. A batch counts each of its matrices, and its
sum is rounded once.

| operation | floating-point operations; A is m x n, m >= n (else exchange them), k right-hand sides | source |
|---|---|---|
| cholesky, LDL | n^3 / 3 | LAWN 41, xPOTRF; GVL 4.4 |
| cholesky_solve, lu_solve, ldl_solve | 2 n^2 k | LAWN 41, xPOTRS, xGETRS |
| cholesky_inverse | 2 n^3 / 3 | LAWN 41, xPOTRI |
| lu, lu_factor, det, slogdet | m n^2 - n^3 / 3, so 2 n^3 / 3 of a square one | LAWN 41, xGETRF |
| solve | 2 n^3 / 3 + 2 n^2 k | LAWN 41, xGETRF and xGETRS |
| inv | 2 n^3 | LAWN 41, xGETRF and xGETRI |
| solve_triangular | n^2 k | LAWN 41, xTRSM |
| geqrf | 2 m n^2 - 2 n^3 / 3 | LAWN 41, xGEQRF |
| householder_product, q columns | 4 m n q - 2 (m + q) n^2 + 4 n^3 / 3 | LAWN 41, xORGQR |
| qr | the two above, or the first alone for R | LAWN 41 |
| svdvals | the smaller of 4 m n^2 - 4 n^3 / 3 and 2 m n^2 + 2 n^3 | GVL 8.6 |
| svd, full | the smaller of 4 m^2 n + 8 m n^2 + 9 n^3 and 4 m^2 n + 22 n^3 | GVL 8.6 |
| svd, reduced | the smallest of the two above, 14 m n^2 + 8 n^3, and 6 m n^2 + 20 n^3 | GVL 8.6 |
| eigvalsh, eigh | 4 n^3 / 3, 9 n^3 | GVL 8.3 |
| eigvals | 10 n^3 | GVL 7.5 |
| eig | 79 n^3 / 3: 25 n^3 for the Schur form, n^3 / 3 for its vectors, n^3 to rotate them back | GVL 7.5, 7.6 |

LAWN 41: LAPACK working note 41 (Blackford, Dongarra 1999), appendix C. GVL: Golub, Van Loan, Matrix Computations.
Least squares, pseudo-inverses and matrix exponentials have no formula: their counts depend on ranks and norms.

Functions that need only singular values or eigenvalues (`svdvals`, `matrix_norm`, `cond`, `matrix_rank`, …) compute
vectors if gradients are wanted, or if a mode observes them. `perhaps_without_vectors` finds these calls, which are then
unknown. `dry_run` knows the user's own calls of svd, svdvals, eigh, eigvalsh, eig and eigvals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Final

from gpu_profile.roofline.counting.operands import Operand, OperatorCall
from gpu_profile.roofline.counting.products import Formula

#: The operations of a real matrix, times three: so they are whole numbers.
Thirds = Callable[[int, int], int]


def _matrix(call: OperatorCall) -> Operand:
    return call.operand("A", "self", "input")


def _count(operand: Operand, thirds: int) -> int:
    """A third of the number, for each matrix of a batch, rounded once."""
    return (thirds * prod(operand.shape[:-2]) * (4 if operand.is_complex else 1) + 1) // 3


def _of_matrix(thirds: Thirds) -> Formula:
    def flops(call: OperatorCall) -> int:
        matrix = _matrix(call)
        return _count(matrix, thirds(max(matrix.shape[-2:]), min(matrix.shape[-2:])))

    return flops


def _lu(m: int, n: int) -> int:
    return 3 * m * n**2 - n**3


def _solved(products: int, *, matrix: Formula | None = None) -> Formula:
    """`products` n^2 for each right-hand side, plus the factorisation of the matrix."""

    def flops(call: OperatorCall) -> int:
        factors, solution = call.operand("A", "LU", "LD", "input2", "self"), call.result
        count = products * factors.shape[-1] * solution.numel() * (4 if solution.is_complex else 1)
        return count + (0 if matrix is None else matrix(call))

    return flops


def _reflected(m: int, n: int, columns: int) -> int:
    """The first columns of Q from n reflectors."""
    return 12 * m * n * columns - 6 * (m + columns) * n**2 + 4 * n**3


def _geqrf(m: int, n: int) -> int:
    return 6 * m * n**2 - 2 * n**3


def _householder(call: OperatorCall) -> int:
    matrix, reflectors = _matrix(call), call["tau"].shape[-1]
    return _count(matrix, _reflected(matrix.shape[-2], reflectors, matrix.shape[-1]))


def _qr(call: OperatorCall) -> int:
    matrix, mode = _matrix(call), call["mode"]
    rows, least, most = matrix.shape[-2], min(matrix.shape[-2:]), max(matrix.shape[-2:])
    columns = {"r": 0, "reduced": least, "complete": rows}[mode]
    return _count(matrix, _geqrf(most, least) + (_reflected(rows, least, columns) if columns else 0))


def _svd(call: OperatorCall) -> int:
    matrix = _matrix(call)
    m, n = max(matrix.shape[-2:]), min(matrix.shape[-2:])
    if not call["compute_uv"]:
        counts = [12 * m * n**2 - 4 * n**3, 6 * m * n**2 + 6 * n**3]
    else:
        counts = [3 * (4 * m**2 * n + 8 * m * n**2 + 9 * n**3), 3 * (4 * m**2 * n + 22 * n**3)]
        if not call["full_matrices"]:
            counts += [3 * (14 * m * n**2 + 8 * n**3), 3 * (6 * m * n**2 + 20 * n**3)]
    return _count(matrix, min(counts))


def _eigh(call: OperatorCall) -> int:
    matrix = _matrix(call)
    return _count(matrix, (27 if call["compute_v"] else 4) * matrix.shape[-1] ** 3)


_FORMULAS: Final[tuple[tuple[str, Formula], ...]] = (
    ("cholesky linalg_cholesky_ex linalg_ldl_factor_ex", _of_matrix(lambda _, n: n**3)),
    ("cholesky_inverse", _of_matrix(lambda _, n: 2 * n**3)),
    ("linalg_lu linalg_lu_factor linalg_lu_factor_ex _linalg_det _linalg_slogdet", _of_matrix(_lu)),
    ("linalg_inv_ex", _of_matrix(lambda _, n: 6 * n**3)),
    ("geqrf", _of_matrix(_geqrf)),
    ("linalg_eig", _of_matrix(lambda _, n: 79 * n**3)),
    ("_linalg_eigvals", _of_matrix(lambda _, n: 30 * n**3)),
    ("cholesky_solve linalg_lu_solve linalg_ldl_solve", _solved(2)),
    ("linalg_solve_triangular triangular_solve", _solved(1)),
    ("_linalg_solve_ex", _solved(2, matrix=_of_matrix(_lu))),
    ("linalg_householder_product", _householder),
    ("linalg_qr", _qr),
    ("_linalg_svd", _svd),
    ("_linalg_eigh", _eigh),
)

#: Full name of an operation -> its formula.
DECOMPOSITIONS: Final[Mapping[str, Formula]] = {
    f"aten.{name}": flops for names, flops in _FORMULAS for name in names.split()
}


def perhaps_without_vectors(call: OperatorCall) -> bool:
    """Whether PyTorch may have computed the vectors of this call only because a mode observed it."""
    match call.name:
        case "aten._linalg_svd":  # for values alone, PyTorch never asks for full matrices
            return bool(call["compute_uv"]) and not call["full_matrices"]
        case "aten._linalg_eigh":
            return bool(call["compute_v"])
    return call.name == "aten.linalg_eig"
