"""A model is run as it would be anyway: how often, what is left as it was, what is counted, what it takes."""

import gc
import weakref
from math import inf
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from unit.roofline.models.modules import Residual, rows  # noqa: E402

from gpu_profile.errors import UsageError  # noqa: E402
from gpu_profile.roofline.counting.counter import Counting  # noqa: E402
from gpu_profile.roofline.models import ModelProfile, profile_model  # noqa: E402
from gpu_profile.roofline.precision import Precision  # noqa: E402
from gpu_profile.roofline.profiler import GPUProfiler  # noqa: E402

# ---------------------------------------------------------------------- what it leaves as it was


def test_the_model_runs_once_and_its_output_is_kept(profiler: GPUProfiler) -> None:
    model = Residual(nn.BatchNorm1d(4))
    value = torch.randn(8, 4)
    found = profile_model(model, value, profiler=profiler)
    assert model.runs == 1
    assert int(model.inside.num_batches_tracked) == 1
    assert torch.equal(found.output, model.inside.train()(value) + value)
    assert found.output.grad_fn is not None


@pytest.mark.parametrize(("options", "runs"), [({"repeats": 3}, 3), ({"warmup": 2}, 3), ({"passes": 2}, 2)])
def test_it_runs_more_often_only_where_asked_to(profiler: GPUProfiler, options: dict[str, Any], runs: int) -> None:
    model = Residual(nn.BatchNorm1d(4))
    found = profile_model(model, torch.randn(8, 4), profiler=profiler, **options)
    assert model.runs == int(model.inside.num_batches_tracked) == runs
    assert found.whole.times.n == rows(found)["inside"].times.n == options.get("repeats", 1)


def test_random_numbers_modes_and_parameters_are_as_after_a_bare_run(profiler: GPUProfiler) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.LSTM(4, 4), nn.Identity().eval())
    value = torch.randn(8, 2, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(7)
    expected = model(value)[0]
    after = torch.get_rng_state()
    torch.manual_seed(7)
    found = profile_model(model, value, profiler=profiler)
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(found.output[0], expected)
    assert [module.training for module in model] == [True, True, True, False]
    assert torch.is_grad_enabled()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_the_model_raises_passes_through_and_no_hook_stays(profiler: GPUProfiler) -> None:
    class Failing(nn.Module):  # type: ignore[misc]
        def forward(self, value: Any) -> Any:
            raise error

    error = LookupError("halfway")
    model = nn.Sequential(nn.Linear(2, 2), Failing())
    with pytest.raises(LookupError) as raised:
        profile_model(model, torch.ones(1, 2), profiler=profiler)
    assert raised.value is error
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert model[0](torch.ones(1, 2)).shape == (1, 2)


def test_a_second_pass_that_fails_leaves_no_mode_of_counting_behind(profiler: GPUProfiler) -> None:
    class Once(nn.Module):  # type: ignore[misc]
        runs = 0

        def forward(self, value: Any) -> Any:
            self.runs += 1
            if self.runs > 1:
                raise KeyboardInterrupt
            return value + 1

    model = nn.Sequential(Residual(Once()))
    with pytest.raises(KeyboardInterrupt):
        profile_model(model, torch.ones(1, 2), profiler=profiler, passes=2)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not any(module._forward_hooks for module in model.modules())


def test_nothing_of_the_model_is_kept_alive(profiler: GPUProfiler) -> None:
    model, value = Residual(nn.Linear(4, 4)), torch.randn(2, 4)
    watched = [weakref.ref(model), weakref.ref(model.inside), weakref.ref(value)]
    found = profile_model(model, value, profiler=profiler, passes=2)
    found = ModelProfile(**{name: getattr(found, name) for name in ModelProfile.__slots__} | {"output": None})
    del model, value
    gc.collect()
    assert [reference() for reference in watched] == [None] * 3
    assert len(found.rows) == 2


# ---------------------------------------------------------------------- what is counted


def test_pytorchs_modules_are_counted_from_their_shapes_without_another_run(profiler: GPUProfiler) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Flatten(), nn.Linear(8 * 6 * 6, 10, bias=False))
    found = rows(profile_model(model, torch.randn(2, 3, 8, 8), profiler=profiler))
    assert found["0"].flops == 2 * 2 * 8 * 6 * 6 * 3 * 9
    assert found["2"].flops == 2 * 2 * 8 * 6 * 6 * 10
    assert found["2"].bytes == 4 * (2 * 288 + 288 * 10 + 2 * 10)
    assert found["2"].intensity == found["2"].flops / found["2"].bytes
    assert found["2"].precision == "fp32"
    assert found["0"].flops_per_s == found["0"].flops / found["0"].own_s
    # A sequence of modules does nothing beside them, and is all of the rest.
    assert (found["Sequential"].flops, found["Sequential"].bytes) == (0, 0)


def test_a_module_that_is_called_on_several_shapes_is_one_row_with_the_sum(profiler: GPUProfiler) -> None:
    class Steps(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(4, 4, bias=False)

        def forward(self, value: Any) -> None:
            for length in (1, 2, 2, 5):
                self.cell(value[:length])

    found = profile_model(Steps(), torch.randn(5, 4), profiler=profiler)
    assert rows(found)["cell"].calls == 4
    assert rows(found)["cell"].flops == 2 * (1 + 2 + 2 + 5) * 16
    assert found.output is None


def test_what_runs_the_users_code_is_absent_until_a_second_pass_counts_it(profiler: GPUProfiler) -> None:
    model = nn.Sequential(Residual(nn.Linear(4, 4, bias=False)))
    value = torch.randn(8, 4)
    once = rows(profile_model(model, value, profiler=profiler))["0"]
    assert (once.flops, once.bytes, once.regime) == (None, None, "UNKNOWN")
    assert once.reasons["flops"] == once.reasons["bytes"] == "needs passes=2"
    twice = rows(profile_model(model, value, profiler=profiler, passes=2))
    # A multiplication by a number and an addition of 32 elements each.
    assert (twice["0"].flops, twice["0"].bytes) == (64, 4 * 32 * 5)
    assert twice["0.inside"].flops == 2 * 8 * 16
    assert twice["Sequential"].flops == 0


def test_the_last_of_several_warm_ups_counts_what_runs_the_users_code(profiler: GPUProfiler) -> None:
    model = nn.Sequential(Residual(nn.Linear(4, 4, bias=False)))
    found = rows(profile_model(model, torch.randn(8, 4), profiler=profiler, warmup=2))
    assert (found["0"].flops, found["0"].bytes, model[0].runs) == (64, 4 * 32 * 5, 3)
    assert rows(profile_model(model, torch.randn(8, 4), profiler=profiler, warmup=1))["0"].flops is None


def test_what_the_modules_do_is_all_that_the_model_does(profiler: GPUProfiler) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), Residual(nn.Sequential(nn.Conv1d(5, 5, 3, padding=1))))
    value = torch.randn(3, 5, 16)
    with Counting(share=inf) as counting:
        model(value)
    found = profile_model(model, value, profiler=profiler, passes=2)
    assert found.whole.flops == counting.work().flops == sum(row.flops or 0 for row in found.rows)
    assert found.whole.bytes == counting.work().bytes == sum(row.bytes or 0 for row in found.rows)


def test_a_sequence_does_nothing_itself_unless_the_user_gave_it_something_to_do(profiler: GPUProfiler) -> None:
    class Named(nn.Sequential):  # type: ignore[misc]
        """As many libraries name their blocks."""

    class Louder(nn.Sequential):  # type: ignore[misc]
        def forward(self, value: Any) -> Any:
            return super().forward(value) * 2

    hooked = nn.Sequential(nn.ReLU())
    hooked.register_forward_hook(lambda _, __, result: result + 1)
    model = nn.Sequential(Named(nn.ReLU()), Louder(nn.ReLU()), hooked)
    found = rows(profile_model(model, torch.ones(2), profiler=profiler))
    assert [found[name].flops for name in ("0", "1", "2")] == [0, None, None]
    found = rows(profile_model(model, torch.ones(2), profiler=profiler, passes=2))
    assert [found[name].flops for name in ("0", "1", "2")] == [0, 2, 2]


def test_a_second_pass_counts_pytorchs_modules_as_the_first_does(profiler: GPUProfiler) -> None:
    class Attention(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, value: Any) -> Any:
            return self.heads(value, value, value, need_weights=False)[0]

    value = torch.randn(2, 5, 8)
    beside = rows(profile_model(Attention(), value, profiler=profiler))["heads"].work
    model = Attention()
    model.heads.register_forward_hook(lambda *_: None)  # the user's: not PyTorch's module alone any more
    counted = rows(profile_model(model, value, profiler=profiler, passes=2))["heads"].work
    assert (beside.method, counted.method) == ("meta", "counted")
    assert (beside.flops, beside.bytes, beside.operations) == (counted.flops, counted.bytes, counted.operations)


def test_work_is_counted_in_the_precision_that_the_model_chose(profiler: GPUProfiler) -> None:
    model = nn.Sequential(nn.Linear(16, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = profile_model(model, torch.randn(4, 16), profiler=profiler)
    assert found.output.dtype == torch.bfloat16
    assert rows(found)["0"].work.by_precision[Precision.BF16] >= 2 * 4 * 16 * 16


def test_in_inference_mode_as_well(profiler: GPUProfiler) -> None:
    with torch.inference_mode():
        found = profile_model(nn.Sequential(nn.Linear(4, 4, bias=False)), torch.randn(2, 4), profiler=profiler)
    assert found.output.is_inference()
    assert rows(found)["0"].flops == 2 * 2 * 16


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_a_lazy_module_is_told_as_what_it_became(profiler: GPUProfiler) -> None:
    found = rows(profile_model(nn.Sequential(nn.LazyLinear(3, bias=False)), torch.randn(2, 4), profiler=profiler))
    assert found["0"].type == "Linear"
    assert found["0"].flops == 2 * 2 * 3 * 4


def test_arguments_that_have_no_stand_in_leave_the_work_absent_with_the_reason(profiler: GPUProfiler) -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])
    found = profile_model(nn.LSTM(4, 4), packed, profiler=profiler)
    assert isinstance(found.output[0], nn.utils.rnn.PackedSequence)
    assert found.rows[0].reasons["flops"] == "an argument is a PackedSequence: needs passes=2"


def test_a_fused_encoder_layer_is_one_row_and_its_modules_are_named_as_not_called(profiler: GPUProfiler) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        found = profile_model(model, torch.randn(2, 3, 8), profiler=profiler)
    assert set(rows(found)) == {"TransformerEncoder", "layers.0", "layers.1"}
    assert rows(found)["layers.0"].flops == rows(found)["layers.1"].flops
    assert rows(found)["layers.0"].flops
    assert any("layers.0.linear1" in note for note in found.notes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_compiled_model_is_one_row_and_its_kernels_are_not_guessed(profiler: GPUProfiler) -> None:
    torch._dynamo.reset()
    model = torch.compile(Residual(nn.Linear(4, 4)), backend="eager")
    for passes in (1, 2):
        found = profile_model(model, torch.randn(2, 4), profiler=profiler, passes=passes)
        (row,) = found.rows
        assert row.name == found.model == "Residual (compiled)"
        assert row.bytes is found.whole.bytes is None
        assert "compiled" in row.reasons["bytes"]
        assert "compiled" in found.whole.reasons["bytes"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_what_is_done_around_a_compiled_module_is_counted(profiler: GPUProfiler) -> None:
    torch._dynamo.reset()
    model = Residual(torch.compile(nn.Linear(4, 4), backend="eager"))
    found = rows(profile_model(model, torch.randn(2, 4), profiler=profiler, passes=2))
    assert found["Residual"].flops == 2 * 8
    assert found["inside"].bytes is None
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_second_pass_does_not_forget_the_half_of_the_work_that_is_known(profiler: GPUProfiler) -> None:
    torch._dynamo.reset()
    model = torch.compile(nn.Linear(4, 4, bias=False), backend="eager")
    once, twice = (profile_model(model, torch.randn(2, 4), profiler=profiler, passes=passes) for passes in (1, 2))
    assert (once.whole.flops, once.whole.bytes) == (twice.whole.flops, twice.whole.bytes) == (64, None)
    torch._dynamo.reset()


# ---------------------------------------------------------------------- what it takes


@pytest.mark.parametrize("inputs", [(torch.ones(2, 2),), {"value": torch.ones(2, 2), "scale": 1.0}, torch.ones(2, 2)])
def test_inputs_are_positional_keyword_or_one(profiler: GPUProfiler, inputs: Any) -> None:
    assert torch.equal(profile_model(Residual(nn.Identity()), inputs, profiler=profiler).output, torch.full((2, 2), 2))


def test_a_model_of_one_module_and_one_without_parameters_are_models(profiler: GPUProfiler) -> None:
    (row,) = profile_model(nn.Linear(4, 4, bias=False), torch.randn(2, 4), profiler=profiler).rows
    assert (row.name, row.flops) == ("Linear", 64)
    assert profile_model(nn.Identity(), None, profiler=profiler).output is None


@pytest.mark.parametrize(
    ("model", "what"),
    [(len, "a builtin_function_or_method"), (nn.ReLU, "the class ReLU: make one"), (None, "a NoneType")],
)
def test_what_is_no_module_is_refused_by_name(model: Any, what: str) -> None:
    with pytest.raises(TypeError, match=f"^profile_model takes a torch.nn.Module, not {what}$"):
        profile_model(model, None)


def test_a_number_of_runs_that_is_none_is_refused_before_anything_runs(profiler: GPUProfiler) -> None:
    model = Residual(nn.Identity())
    with pytest.raises(ValueError, match="repeats"):
        profile_model(model, torch.ones(2), profiler=profiler, repeats=0)
    assert model.runs == 0


def test_a_model_on_another_device_than_the_profilers_is_refused(profiler: GPUProfiler) -> None:
    with pytest.raises(UsageError, match="Linear is on meta, the profiler is for cpu"):
        profile_model(nn.Linear(2, 2, device="meta"), torch.ones(1, 2, device="meta"), profiler=profiler)
    with pytest.raises(UsageError, match="not both"):
        profile_model(nn.ReLU(), None, profiler=profiler, device="cpu")


def test_inputs_on_another_device_than_the_model_are_its_own_error(profiler: GPUProfiler) -> None:
    with pytest.raises(RuntimeError, match=r"meta|device"):
        profile_model(nn.Linear(2, 2), torch.ones(1, 2, device="meta"), profiler=profiler)
