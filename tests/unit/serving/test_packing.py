"""The sums of an iteration identify its prompts."""

import pytest

from gpu_profile.serving.streams.packing import Packed, PassSums, PromptState, packed


def prompts(*some: tuple[int, int]) -> list[PromptState]:
    """Prompts by the tokens that are left, and those before them."""
    return [PromptState(left + before, left, begun=False) for left, before in some]


@pytest.mark.parametrize(
    ("some", "sums", "fit"),
    [
        # The first answer is a later iteration's.
        (prompts((300, 0), (500, 0)), PassSums(1, 500, 0, False), Packed((1,), (500,))),
        # The other one has the stored tokens.
        (prompts((300, 0), (500, 64)), PassSums(1, 300, 64, False), None),
        (prompts((300, 0), (500, 0), (200, 0)), PassSums(2, 500, 0, False), Packed((0, 2), (300, 200))),
        (prompts((300, 0), (500, 0)), PassSums(2, 512, 0, False), None),
        # Tokens in whole pages.
        (prompts((300, 0), (500, 0)), PassSums(1, 320, 0, False), Packed((0,), (300,))),
        # A prompt is cut: only one has as many tokens.
        (prompts((100, 0), (500, 0)), PassSums(2, 400, 0, True), Packed((0,), (100,), 1, 300)),
        # Either may be cut, and no next iteration says which one.
        (prompts((300, 0), (500, 0)), PassSums(2, 612, 0, True), None),
        # Too many to search.
        (prompts(*[(1, 0)] * 20), PassSums(13, 13, 0, False), None),
    ],
)
def test_prompts_are_those_with_the_sums_of_the_iteration(
    some: list[PromptState], sums: PassSums, fit: Packed | None
) -> None:
    assert packed(some, sums, None, unsure=False) == fit


@pytest.mark.parametrize(
    ("after", "fit"),
    [
        (PassSums(1, 188, 312, False), Packed((0,), (300,), 1, 312)),
        (PassSums(1, 188, 112, False), Packed((1,), (500,), 0, 112)),
    ],
)
def test_the_next_iteration_says_which_prompt_was_cut(after: PassSums, fit: Packed) -> None:
    assert packed(prompts((300, 0), (500, 0)), PassSums(2, 612, 0, True), after, unsure=False) == fit


def test_a_prompt_that_has_begun_goes_on_at_once() -> None:
    some = [PromptState(200, 200, begun=False), PromptState(500, 200, begun=True)]
    assert packed(some, PassSums(1, 200, 0, False), None, unsure=False) is None
    assert packed(some, PassSums(1, 200, 300, False), None, unsure=False) == Packed((1,), (200,))


def test_after_an_iteration_without_its_prompts_the_last_part_of_one_is_recognised() -> None:
    """300 of its 500 tokens were computed in an iteration whose prompts are not certain."""
    some, sums = prompts((500, 0), (80, 0)), PassSums(2, 280, 300, False)
    assert packed(some, sums, None, unsure=False) is None
    assert packed(some, sums, None, unsure=True) == Packed((0, 1), (200, 80))
