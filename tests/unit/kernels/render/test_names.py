import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.kernels.render.names import labels, middle, short_name


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::F<float>>(int, at::F<float>)",
         "at::native::vectorized_elementwise_kernel"),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float, long>(int)",
         "at::native::max_pool_forward_nchw"),
        ("cudnn::cnn::wgrad_alg0_engine<float, 128>(int)", "cudnn::cnn::wgrad_alg0_engine"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("unsigned int* pack(int)", "pack"),
        ("autograd::engine::evaluate_function: AddBackward0", "autograd::engine::evaluate_function: AddBackward0"),
        ("broken<int", "broken<int"),
        ("<int>", "<int>"),
        ("", ""),
    ],
)  # fmt: skip
def test_a_short_name_is_the_function(name: str, short: str) -> None:
    assert short_name(name) == short


def test_kernels_of_one_function_are_told_apart_by_where_their_arguments_differ() -> None:
    found = labels(
        [
            "void at::native::fill<4, at::native::FillFunctor<float>>(int)",
            "void at::native::fill<4, at::native::AddFunctor<float>>(int)",
            "void at::native::other<4>(int)",
        ]
    )
    assert list(found.values()) == [
        "fill …FillFunctor<float>>(int)",
        "fill …AddFunctor<float>>(int)",
        "at::native::other",
    ]


def test_a_function_whose_name_says_nothing_is_called_by_its_arguments() -> None:
    (label,) = labels(["void cutlass::Kernel2<cutlass_80_simt_sgemm_nn>(Params)"]).values()
    assert label == "cutlass::Kernel2 …cutlass_80_simt_sgemm_nn>(Params)"


def test_what_is_too_long_is_shortened_in_its_middle() -> None:
    assert middle("abcdefghij", 7) == "abc…hij"
    assert middle("abc", 7) == "abc"


@given(st.lists(st.text(max_size=90) | st.from_regex(r"a::(b|c)<[<>a,(]{0,90}", fullmatch=True)), st.integers(50, 90))
def test_every_label_fits_is_printable_and_is_nobody_elses(names: list[str], width: int) -> None:
    found = labels(names, width)
    assert found.keys() == set(names)
    assert all(len(label) <= width and (label.isprintable() or not label) for label in found.values())
    assert len(set(found.values())) == len(found)
