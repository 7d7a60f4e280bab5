import numpy as np
import pytest

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.concurrent_time import ConcurrentTime
from gpu_profile.join.unmixing.windows.active_time import ActiveTime
from gpu_profile.join.unmixing.windows.activities import Pieces
from gpu_profile.join.unmixing.windows.beside import beside

#: Columns of three regions, and of their shared time.
COLUMNS = 7
SLOTS = np.array([-1, -1, -1, -1, 0, -1, 1])
PROBED = np.array([4, 6])


def drawn(seed: int, count: int = 40) -> tuple[Pieces, Ints]:
    """Pieces that overlap at random, and the regions' columns."""
    rng = np.random.default_rng(seed)
    starts = np.sort(rng.integers(0, 1000, count))
    return Pieces(np.arange(count), starts, starts + rng.integers(1, 90, count)), rng.integers(1, 4, count)


def running(pieces: Pieces, alone: Ints) -> Floats:
    """How many pieces of each region run at each tick, `[3, ticks]`, in shared time."""
    ticks = np.arange(int(pieces.ends.max()))
    runs = (pieces.starts[:, None] <= ticks) & (ticks < pieces.ends[:, None])
    counts: Floats = np.stack([runs[alone == region].sum(axis=0) for region in (1, 2, 3)]).astype(float)
    counts[:, counts.sum(axis=0) < 2] = 0.0
    return counts


@pytest.mark.parametrize("seed", range(4))
def test_probes_are_the_executions_of_a_region_in_shared_time_and_whether_there_is_any(seed: int) -> None:
    pieces, alone = drawn(seed)
    active = ActiveTime.of(pieces, alone.astype(np.int16), (alone + 3).astype(np.int16))
    open_ = running(pieces, alone)
    moments = np.random.default_rng(seed).permutation(open_.shape[1])
    found = beside(active, moments, SLOTS)
    for slot, region in enumerate((0, 2)):
        for kind, curve in enumerate((open_[region], open_[region] > 0)):
            expected = np.append(0, np.cumsum(curve))[moments]
            got = found[2 * kind + slot]
            assert got - got[0] == pytest.approx(expected - expected[0], abs=1e-6)


def test_executions_that_never_overlap_have_no_probes() -> None:
    column = np.ones(2, np.int16)
    active = ActiveTime.of(Pieces(np.arange(2), np.array([0, 20]), np.array([10, 30])), column, 0 * column)
    assert not beside(active, np.array([5, 25]), SLOTS).any()
    assert not beside(active, np.zeros(0, np.int64), SLOTS).size
    assert ConcurrentTime().centres(PROBED, COLUMNS).shape == (COLUMNS, 0)


@pytest.mark.parametrize("seed", range(4))
def test_centred_probes_change_no_mean_over_a_regions_part_of_shared_time(seed: int) -> None:
    pieces, alone = drawn(seed)
    known = ConcurrentTime()
    known.add(pieces, alone + 3, COLUMNS)
    centres = known.centres(PROBED, COLUMNS)
    open_ = running(pieces, alone)
    parts = open_ / np.maximum(open_.sum(axis=0), 1)
    probes = np.stack([open_[0], open_[2], open_[0] > 0, open_[2] > 0]).astype(float)
    assert abs(parts @ probes.T).min() > 10
    assert parts @ (probes - centres[4:].T @ parts).T == pytest.approx(0.0, abs=1e-6)
    assert not centres[:4].any()


def test_merged_columns_have_the_sums_of_both() -> None:
    pieces, alone = drawn(1)
    apart, together = ConcurrentTime(), ConcurrentTime()
    apart.add(pieces, alone + 3, COLUMNS)
    together.add(pieces, np.where(alone == 2, 4, alone + 3), COLUMNS)
    for known in (apart, ConcurrentTime()):
        known.merge(5, 4)
    rows = np.arange(COLUMNS)
    assert apart.joint(rows, COLUMNS) == pytest.approx(together.joint(rows, COLUMNS))
    assert apart.joint(rows, COLUMNS)[5].tolist() == np.eye(COLUMNS)[5].tolist()
