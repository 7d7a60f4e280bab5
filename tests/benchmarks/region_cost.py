"""What a region costs the code that it is put around: a call, a span, and a span with joined values."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from support.nvml_stub.build import build, child_environment

from benchmarks.rows import Row

_HERE = Path(__file__).resolve().parent

#: By kind of region: what it may cost over the bare call, in µs.
_REACH = {"decorator": 0.5, "async function": 0.6, "with region(...)": 0.7, "one region object again": None}


def rows() -> Iterator[Row]:
    """Each in a process of its own, so that none has the others' garbage."""
    yield from bare()
    yield _span()
    yield _joined()
    yield _searching()
    yield _launching()


def measure(what: str, environment: dict[str, str] | None = None) -> dict[str, float]:
    """Run one of `region_loops`' measurements."""
    command = [sys.executable, str(_HERE / "region_loops.py"), what]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def bare() -> Iterator[Row]:
    found = measure("bare")
    noop = found["no-op span"]
    for name, reach in _REACH.items():
        cost = found[name]
        wanted, ok = ("-", True) if reach is None else (f"<={reach:g} µs", cost <= reach)
        if name == "decorator":
            wanted, ok = wanted + ", >=6x less", ok and noop >= 6 * cost
        yield Row(
            f"span=False: {name}",
            f"{cost:.2f} µs over the bare call",
            f"OpenTelemetry's no-op span {noop:.2f} µs",
            f"{noop / cost:.1f}x less",
            wanted,
            ok,
            cost / noop,
        )
    cost = found["disabled"]
    yield Row(
        "disabled: decorator", f"{cost:.3f} µs over the bare call", reach="<=0.1 µs", ok=cost <= 0.1, cost=cost / noop
    )
    yield Row(
        "disabled: with region(...)",
        f"{found['disabled with']:.2f} µs over nothing",
        cost=found["disabled with"] / noop,
    )


def _span() -> Row:
    found = measure("span")
    ratio = found["region"] / found["span"]
    return Row(
        "region with an SDK span",
        f"{found['region']:.1f} µs",
        f"start_as_current_span {found['span']:.1f} µs",
        f"{ratio:.2f}x",
        "<=1.05x",
        ratio <= 1.05,
        ratio,
    )


def _joined() -> Row:
    # On a simulator in Python the sampler would pay for the simulation.
    with tempfile.TemporaryDirectory() as directory:
        library = build(Path(directory))
        found = measure("joined", child_environment(library, gpus=1, gpm=1, busy=1))
    ratio = found["ratio"]
    return Row(
        "region with joined attributes, CPU of the whole process at 4,000 spans/s",
        f"{found['region']:.1f} µs a span of {found['attributes']:.0f} attributes",
        f"span with set_attributes of as many {found['span']:.1f} µs",
        f"{ratio:.2f}x (without attributes {found['bare']:.1f} µs)",
        "<=1.3x, all joined",
        ratio <= 1.3 and found["joined"] == 1 and not found["unjoined"],
        ratio,
    )


def _searching() -> Row:
    found = measure("searching")
    slowest, at_once = found["by_turns slowest"], found["at_once slowest"]
    return Row(
        "a loop that gives Python's lock away, beside the search for an H100's timings, slowest 1/20 of 50 ms",
        f"{slowest:.0%} of its pace (in all {found['by_turns mean']:.0%})",
        f"searched at once {at_once:.0%} ({found['at_once mean']:.0%}), alone {found['alone slowest']:.0%}",
        f"{slowest / at_once:.1f}x as fast",
        ">=1.5x",
        slowest >= 1.5 * at_once,
        at_once / slowest,
    )


def _launching() -> Row:
    with tempfile.TemporaryDirectory() as directory:
        environment = child_environment(build(Path(directory)), gpus=1, gpm=1, busy=1)
        found = measure("launching", {**environment, "NVML_STUB_TIMES": "1"})
    return Row(
        "a thread that launches 360 kernels in 3 regions, in the first 30 s of a session at 20 Hz, H100's call times",
        f"held up {found['beside']:.1%} of the time, in {found['regions'] / 30:.0f} regions/s",
        f"without a session {found['alone']:.1%}",
        f"the join takes {found['join']:.1%} of a core, the sampler {found['sampler']:.1%}",
        "<=10%",
        found["beside"] <= 0.1,
        found["beside"],
    )
