"""The regimes' verdicts on random workloads, against what their physics says, and on recorded traces.

The workloads are of a family that was not looked at while rules and thresholds were made.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.regime_worlds import Case, case
from benchmarks.rows import Row
from gpu_profile.kernels import Trace, evidence, measure
from gpu_profile.regimes import Regime, Verdict, classify
from gpu_profile.regimes.evidence import Basis

#: Workloads in all; three in five are on devices with activity counters.
WORKLOADS: Final = 1_200
#: From here on, a verdict is one that people act on.
SURE: Final = 0.7
_STEPS: Final = (0.0, 0.5, 0.6, SURE, 0.8, 1.0)
_TRACES: Final = Path(__file__).parents[1] / "data" / "traces"
#: What is known of the programs that were recorded, and of the one case in which it matters what comes next.
_RECORDED: Final[tuple[tuple[str, Regime, Regime | None], ...]] = (
    ("kineto/resnet50_workers0", Regime.HOST_BOUND, None),
    ("hta/ddp_a100_nccl_rank0", Regime.HOST_BOUND, Regime.COMMUNICATION_BOUND),
    ("hta/mi250_minitoy_rocm62", Regime.OVERHEAD_BOUND, None),
    ("hta/alexnet_a100", Regime.IDLE, None),
)


def rows(workloads: int = WORKLOADS) -> Iterator[Row]:
    """One row for each basis; the confusions and how confidence fares go to stderr."""
    with ProcessPoolExecutor() as workers:
        cases = list(workers.map(case, range(workloads), chunksize=5))
    for basis in ("counters", "coarse"):
        yield row(basis, [c for c in cases if c.verdict.basis == basis])


def real_traces() -> Iterator[Row]:
    """One row for each recorded trace, by the basis `kernels`."""
    for name, regime, next_one in _RECORDED:
        verdict = _verdict(name)
        reach = str(regime) if next_one is None else f"{regime}, then {next_one}"
        yield Row(
            f"regime of the trace {name.rpartition('/')[2]}",
            f"{verdict.regime}, then {verdict.runner_up}, confidence {verdict.confidence:.2f}",
            reach=reach,
            ok=verdict.basis == "kernels" and verdict.regime is regime and next_one in (None, verdict.runner_up),
        )


def _verdict(name: str) -> Verdict:
    activity = measure(Trace(_TRACES / f"{name}.json.gz"))
    assert activity is not None, name
    return classify(evidence(activity))


def row(basis: Basis, cases: Sequence[Case]) -> Row:
    """The figures of one basis, and whether they reach what they should."""
    sys.stderr.write(f"\n{confusions(basis, cases)}\n\n{classes(cases)}\n\n{calibration(cases)}\n")
    said = answered(cases)
    unknown = 1 - len(said) / len(cases)
    right, strict = share(c.right for c in said), share(c.strictly_right for c in said)
    sure = [c for c in said if c.verdict.confidence >= SURE]
    wrong = 1 - share(c.right for c in sure) if sure else 0.0
    figure = f"{right:.1%} right of those answered, {unknown:.1%} UNKNOWN, {wrong:.1%} wrong of {len(sure)} at >={SURE}"
    baseline = f"{strict:.1%} right if only ties within 10 % are allowed for"
    if basis == "counters":
        reach, ok = ">=95 % right, <=10 % UNKNOWN", right >= 0.95 and unknown <= 0.1
    else:
        reach, ok = f"<=2 % wrong at >={SURE}", wrong <= 0.02
    figure = f"of {len(cases)}: {figure}"
    return Row(f"regimes of random workloads, {basis}", figure, baseline, "-", reach, ok, 1 - right)


def answered(cases: Sequence[Case]) -> list[Case]:
    """The cases with a verdict other than UNKNOWN."""
    return [c for c in cases if c.verdict.regime is not Regime.UNKNOWN]


def share(values: Iterator[bool]) -> float:
    """The share of true ones; 1 of none."""
    found = list(values)
    return sum(found) / len(found) if found else 1.0


def confusions(basis: str, cases: Sequence[Case]) -> str:
    """The confusion matrix: a line for each truth, a column for each verdict."""
    counts = Counter((c.label, c.verdict.regime) for c in cases)
    told = [regime for regime in Regime if any(verdict is regime for _, verdict in counts)]
    lines = [f"{basis}: truth \\ verdict".ljust(28) + "".join(f"{str(r)[:9]:>10}" for r in told)]
    lines += [
        f"{truth!s:<28}" + "".join(f"{counts[truth, r] or '.':>10}" for r in told)
        for truth in Regime
        if any(label is truth for label, _ in counts)
    ]
    return "\n".join(lines)


def classes(cases: Sequence[Case]) -> str:
    """How each truth fares: right of those answered, and left without an answer."""
    lines = [f"{'truth':<28}{'workloads':>10}{'right':>10}{'UNKNOWN':>10}"]
    for truth in Regime:
        some = [c for c in cases if c.label is truth]
        if some:
            said = answered(some)
            right = f"{share(c.right for c in said):.1%}" if said else "-"
            lines.append(f"{truth!s:<28}{len(some):>10}{right:>10}{1 - len(said) / len(some):>10.1%}")
    return "\n".join(lines)


def calibration(cases: Sequence[Case]) -> str:
    """How often verdicts of each confidence are right."""
    lines = [f"{'confidence':<14}{'verdicts':>10}{'right':>10}"]
    for low, high in pairwise(_STEPS):
        some = [c for c in answered(cases) if low <= c.verdict.confidence < high]
        if some:
            lines.append(f"{f'{low:.1f}-{high:.1f}':<14}{len(some):>10}{share(c.right for c in some):>10.1%}")
    return "\n".join(lines)
