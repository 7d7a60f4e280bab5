from collections.abc import Iterator
from typing import Any

import pytest
from support.regions import Stage

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402
from unit.integrations.modules import batch, count, torch_stage  # noqa: E402

from gpu_profile.integrations.torch import instrument, waiting  # noqa: E402

__all__ = ["torch_stage"]


class Slow(Dataset):  # type: ignore[misc]
    """Each item takes a second of the stage's time."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        self.stage.clock.advance(1.0)
        return torch.ones(4)


def test_only_the_wait_for_a_batch_is_data_wait(stage: Stage) -> None:
    loader = DataLoader(Slow(stage))
    with instrument(nn.Linear(4, 4), loader=loader):
        for _ in loader:
            stage.clock.advance(10.0)
    stage.session.settle(final=True)
    waits = [(e.end_ns - e.start_ns) / 1e9 for e in stage.ended if e.name == "data_wait"]
    assert waits == [0.0, 1.0, 1.0, 1.0, 0.0]  # to begin, for each batch, for the end
    assert not any(e.failed for e in stage.ended)


def test_only_the_loaders_that_were_given_are_watched_and_true_is_all(stage: Stage) -> None:
    watched, other = DataLoader(Slow(stage)), DataLoader(Slow(stage))
    with instrument(nn.Linear(4, 4), loader=[watched]):
        assert type(iter(other)) is not waiting
        assert type(iter(watched)) is waiting
    with instrument(nn.Linear(4, 4), loader=True):
        assert type(iter(other)) is waiting
        assert len(iter(other)) == 3


def test_workers_and_a_loader_that_is_used_again(stage: Stage) -> None:
    loader = DataLoader(TensorDataset(batch(4)), num_workers=1, persistent_workers=True, timeout=60)
    with instrument(nn.Linear(4, 4), loader=loader):
        assert [len(list(loader)) for _ in range(2)] == [4, 4]
    assert count(stage) == {"data_wait": 12}


def test_a_dataset_that_raises_is_a_failed_wait(stage: Stage) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    batches = waiting(broken(), span=False)
    assert next(batches) == 1
    with pytest.raises(OSError, match="disk"):
        next(batches)
    stage.session.settle(final=True)
    assert [e.failed for e in stage.ended] == [False, True]
    with pytest.raises(AttributeError, match="nonsense"):
        batches.nonsense  # noqa: B018
