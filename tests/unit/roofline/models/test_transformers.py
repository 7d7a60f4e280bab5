"""A model of a library whose modules are its own code: the layers of Hugging Face's GPT-2."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gpu_profile.roofline import GPUProfiler, profile_model  # noqa: E402

LAYERS, WIDTH, HEADS, WORDS, BATCH, LENGTH = 2, 128, 4, 1000, 2, 64


@pytest.fixture(scope="module", name="model")
def gpt2() -> Any:
    """A GPT-2 with random weights."""
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_embd=WIDTH, n_head=HEADS, vocab_size=WORDS, n_positions=LENGTH, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("options", [{"passes": 2}, {"warmup": 2}], ids=str)
@pytest.mark.parametrize("gradients", [True, False])
def test_nearly_all_time_of_a_gpt2_is_counted_and_its_flops_are_the_closed_form(
    model: Any, profiler: GPUProfiler, options: dict[str, Any], gradients: bool
) -> None:
    with torch.set_grad_enabled(gradients):
        found = profile_model(model, torch.randint(0, WORDS, (BATCH, LENGTH)), profiler=profiler, **options)
    rows = BATCH * LENGTH
    # Four projections of attention and two of the perceptron, which is four times as wide, with their biases.
    layer = rows * (2 * 12 * WIDTH**2 + 9 * WIDTH)
    # Queries times keys and weights times values, with only the keys at or before a query.
    attention = 4 * BATCH * (LENGTH * (LENGTH + 1) // 2) * WIDTH
    products = LAYERS * (layer + attention) + 2 * rows * WIDTH * WORDS
    # Two norms, two sums, and the GELU of GPT-2 from its single steps: 8 operations for each of 4 * WIDTH elements.
    others = LAYERS * rows * WIDTH * (2 * 7 + 2 + 4 * 8) + rows * WIDTH * (7 + 1)
    assert found.counted_flops.share >= 0.9
    assert found.whole.flops == pytest.approx(products + others, rel=0.01)
    assert found.whole.work.unknown == {}
