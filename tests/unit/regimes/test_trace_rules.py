"""What a verdict on a trace says, against the shares that the bar beside it shows."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.regimes import Regime, Verdict, classify
from gpu_profile.regimes.evidence import Evidence

CAUSES = {
    Regime.COMMUNICATION_BOUND: "communication",
    Regime.TRANSFER_BOUND: "transfer",
    Regime.OVERHEAD_BOUND: "overhead",
    Regime.IDLE: "idle",
    Regime.HOST_BOUND: "host_wait",
}


def judge(kernel_s: float = 1e-3, launching: float = 0.0, **parts: float) -> Verdict:
    """Of parts of a span that add up to 1; `unknown` and `launching` (of the host wait) are told by nothing else."""
    others = parts.get("others", 0.0)
    own = (1 - others) or 1.0
    keys = ("work", "communication", "transfer", "host_wait", "other_wait")
    values = {key: parts.get(key, 0.0) / own for key in keys}
    values["busy"] = values["work"] + values["communication"] + values["transfer"]
    values["launch"] = values["host_wait"] * launching
    return classify(Evidence("kernels", {**values, "others": others, "kernel_s": kernel_s}, 1000, 1.0))


SHARES = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.01, 5.0, 50.0]), min_size=7, max_size=7).filter(any)


@given(
    SHARES.map(lambda weights: [weight / sum(weights) for weight in weights]),
    st.sampled_from([2e-6, 2e-5, 3e-5, 1e-3]),
    st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0]),
)
def test_a_sentence_names_the_longest_wait_by_its_share_and_says_where_work_is_more(
    shares: list[float], kernel_s: float, launching: float
) -> None:
    names = ("work", "communication", "transfer", "host_wait", "other_wait", "others", "unknown")
    parts = dict(zip(names, shares, strict=True))
    verdict = judge(kernel_s, launching, **parts)
    sentence = verdict.advice or verdict.rule
    assert not re.search(r"(?<![\d.])0 %", sentence)
    told = [int(share) / 100 for share in re.findall(r"(\d+) %", sentence)]
    launch = parts["host_wait"] * launching
    waits = {**parts, "idle": parts["host_wait"] + parts["other_wait"] + parts["unknown"]}
    del waits["work"]
    if verdict.regime is Regime.UNKNOWN:
        assert told or parts["work"] + parts["others"] + parts["unknown"] > 0.99
        if parts["work"] < 0.79 and parts["others"] > max(share for name, share in parts.items() if name != "others"):
            assert "only others' operations run" in sentence
        return
    if verdict.regime is Regime.OVERHEAD_BOUND:
        short = parts["other_wait"] * kernel_s < 25e-6 * (parts["work"] + parts["communication"])
        cause = launch + (parts["other_wait"] if short else 0.0)
        rest = parts["host_wait"] - launch
        assert cause >= max(rest, *(parts[name] for name in ("communication", "transfer", "others", "unknown"))) - 1e-9
    else:
        cause = waits[CAUSES[verdict.regime]]
        alternatives = {name: share for name, share in waits.items() if name not in ("idle", CAUSES[verdict.regime])}
        if verdict.regime is not Regime.IDLE:
            assert cause >= max(alternatives.values()) - 1e-9
    assert cause >= 0.05
    assert any(abs(cause - share) <= 0.0051 for share in told)
    assert ("the longest wait" in sentence) == (parts["work"] > cause)
    assert not parts["work"] > cause or any(abs(parts["work"] - share) <= 0.0051 for share in told)


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        (
            judge(work=0.61, communication=0.19, host_wait=0.15, other_wait=0.05),
            "work takes 61 % of the time; the longest wait, 19 %, is communication that no kernel hides: overlap it",
        ),
        (
            judge(work=0.2, transfer=0.5, host_wait=0.3),
            "50 % of the time is copies over a link that nothing hides: pin host memory, overlap or shrink them",
        ),
        (
            judge(5e-6, 0.9, work=0.3, host_wait=0.5, other_wait=0.2),
            "65 % of the time is launching kernels (45 %) and gaps between kernels (20 %): batch more,",
        ),
        (
            judge(5e-6, work=0.6, other_wait=0.4),
            "work takes 60 % of the time; the longest wait, 40 %, is gaps between kernels: batch more,",
        ),
        (
            judge(work=0.01, host_wait=0.99),
            "99 % of the time is idle: give the GPU work, or look at a shorter part of the trace",
        ),
        (
            judge(launching=0.3, work=0.3, host_wait=0.7),
            "70 % of the time is waiting for the host (21 % launching): prefetch, or raise num_workers",
        ),
        (
            judge(launching=0.9, work=0.3, host_wait=0.7),
            "70 % of the time is waiting for the host (63 % launching): batch more,",
        ),
    ],
)
def test_each_rule_says_what_takes_how_long(verdict: Verdict, sentence: str) -> None:
    assert verdict.advice.startswith(sentence)


def test_a_device_that_runs_others_operations_is_neither_idle_nor_short_of_launches() -> None:
    verdict = judge(2.7e-6, work=0.041, other_wait=0.032, others=0.927)
    assert verdict.regime is Regime.UNKNOWN
    assert verdict.rule == (
        "for 93 % of the time only others' operations run on the device: judge the regions that launched them"
    )


def test_a_long_wait_of_short_kernels_for_an_event_is_no_overhead() -> None:
    verdict = judge(5e-6, work=0.05, other_wait=0.95)
    assert verdict.regime is Regime.UNKNOWN
    assert verdict.rule.startswith("for 95 % of the time operations wait that had been launched")
