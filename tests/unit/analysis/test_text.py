"""What a reader of the console gets: 80 columns, grouped reasons, remedies, and figures that agree or say why not."""

import re
from dataclasses import replace

import pytest
from support.analysis import Run, two_devices

from gpu_profile.analysis import Analysis, analyse, compare
from gpu_profile.analysis.comparison_page import render_page
from gpu_profile.analysis.comparison_text import render_comparison, summary
from gpu_profile.analysis.text import advice, labels, listed, reasons, render, render_regions
from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.join.remedies import remedy
from gpu_profile.join.unmixing.probes import ProbeGroup
from gpu_profile.join.unmixing.unmix import LOCK_STEP, TIMING
from gpu_profile.regimes import Regime

MIG = "MIG-4fcd5654-1bc6-5cbc-936b-764183ae326c"


@pytest.fixture(scope="module")
def ordinary() -> Analysis:
    return analyse(Run().recording())


@pytest.fixture(scope="module")
def dear() -> Analysis:
    return analyse(Run(seed=2, dear=1.2).recording())


def refused(analysis: Analysis, why: str) -> Analysis:
    """The same with this reason for each region's missing rates."""
    uses = [
        replace(
            use,
            summary=replace(use.summary, busy=None, call_energy_j=None),
            verdict=replace(use.verdict, regime=Regime.UNKNOWN, rule=why, advice=""),
            reasons=(f"GPU busy: {why}", f"energy per call: {why}"),
        )
        for use in analysis.regions
    ]
    return replace(analysis, regions=tuple(uses))


def long_names(analysis: Analysis) -> Analysis:
    uses = [
        replace(use, summary=replace(use.summary, region=f"model.layers.{i}.self_attention.query_key_value projection"))
        for i, use in enumerate(analysis.regions)
    ]
    return replace(analysis, regions=tuple(uses))


def test_nothing_is_wider_than_the_terminal_and_no_figure_is_cut(ordinary: Analysis, dear: Analysis) -> None:
    long = long_names(analyse(two_devices(Run())))
    texts = [
        *(render(each, width=80) for each in (ordinary, long, refused(ordinary, LOCK_STEP))),
        render_regions(long, width=80),
        render_comparison(compare(ordinary, dear), (), width=80),
    ]
    for text in texts:
        wide = [line for line in text.splitlines() if len(line) > 80]
        assert wide == []
        assert not re.search(r"\d…", text)


def test_names_that_do_not_fit_continue_on_the_next_line(ordinary: Analysis) -> None:
    text = render_regions(long_names(ordinary), width=80)
    lines = text.splitlines()[2:]
    first = next(place for place, line in enumerate(lines[1:], 1) if not line.startswith("  "))
    name = "".join(line[:14].strip() for line in lines[:first])
    assert name == "model.layers.0.self_attention.query_key_valueprojection"


def test_the_columns_that_do_not_fit_are_listed(ordinary: Analysis) -> None:
    narrow, wide = render(ordinary, width=80), render(ordinary)
    assert re.search(r"^not shown in 80 columns: p95,.*\(--json\s+has all\)$", narrow, re.MULTILINE)
    assert "not shown" not in wide
    assert "p95" in wide


def test_a_mig_instance_has_the_beginning_of_its_uuid_if_that_is_its_own(ordinary: Analysis) -> None:
    gpu, mig = Device("GPU-a", index=0), Device(MIG, kind=DeviceKind.MIG)
    twin = replace(mig, uuid=f"{MIG[:12]}-ffff")
    one = replace(ordinary, regions=())
    first = one.devices[0]
    both = replace(one, devices=tuple(replace(first, device=each) for each in (gpu, mig)))
    assert labels(both) == {"GPU-a": "0", MIG: "MIG-4fcd5654"}
    alike = replace(one, devices=tuple(replace(first, device=each) for each in (mig, twin)))
    assert labels(alike) == {MIG: MIG, twin.uuid: twin.uuid}


def test_one_reason_is_one_line_with_its_regions_and_its_remedy(ordinary: Analysis) -> None:
    lines = [line for line in reasons(refused(ordinary, LOCK_STEP)) if LOCK_STEP in line]
    assert lines == [
        f"load, step and forward on device 0: GPU busy and energy per call: {LOCK_STEP} ({remedy(LOCK_STEP)})"
    ]
    assert "stream" in remedy(LOCK_STEP)


@pytest.mark.parametrize(
    "reason",
    [
        *(LOCK_STEP, TIMING, "too few samples (3)", "not identifiable yet: ±3 around 4", "no samples cover the region"),
        *(f"not identifiable: {group}" for group in ProbeGroup),
        "not identifiable: 3 ± 1 is not possible",
    ],
)
def test_every_refusal_of_a_rate_has_a_remedy(reason: str) -> None:
    assert remedy(reason)


def test_what_no_remedy_is_known_for_gets_none() -> None:
    assert remedy("the device reports no utilisation") == ""


def test_regions_with_one_next_step_share_its_line(ordinary: Analysis) -> None:
    verdict = replace(ordinary.regions[0].verdict, regime=Regime.BALANCED, advice="leave it as it is")
    alike = replace(ordinary, regions=tuple(replace(use, verdict=verdict) for use in ordinary.regions))
    assert advice(alike) == ["load, step and forward: BALANCED: leave it as it is"]


def test_names_in_a_sentence_are_counted_beyond_the_first() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b"]) == "a and b"
    assert listed(list("abcdefgh")) == "a, b, c, d, e and 3 more"


def test_joules_that_differ_from_joules_per_call_are_explained(ordinary: Analysis) -> None:
    assert "per call: mean power times time, with the regions inside it" in render(ordinary)
    uses = [
        replace(use, summary=replace(use.summary, energy_j=60.0 * 2, executions=60, call_energy_j=2.0))
        for use in ordinary.regions
    ]
    assert "mean power times time" not in render(replace(ordinary, regions=tuple(uses)))


# ---------------------------------------------------------------------- comparisons


def test_a_comparison_begins_with_what_changed_what_did_not_and_what_cannot_be_judged(
    ordinary: Analysis, dear: Analysis
) -> None:
    lines = summary(compare(ordinary, dear))
    assert len(lines) == 3
    changed, same, untold = lines
    assert changed.startswith("Changed: forward energy more (+2")
    assert "step energy more" in changed
    assert re.match(r"No difference shown: 12 quantities: step duration by up to \d+ % and ", same)
    assert untold.startswith("Not to be judged: load p95, step p95 and forward p95")
    assert render_comparison(compare(ordinary, dear), ()).startswith("\n".join(lines))


def test_a_program_beside_itself_did_not_change(ordinary: Analysis) -> None:
    assert summary(compare(ordinary, ordinary))[0] == "Changed: nothing for certain"


def test_regions_of_one_side_are_in_the_summary_of_a_comparison(ordinary: Analysis) -> None:
    fewer = {name: runs for name, runs in ordinary.runs.items() if name != "load"}
    part = replace(ordinary, runs=fewer, regions=tuple(u for u in ordinary.regions if u.summary.region != "load"))
    assert "region load is only in A" in summary(compare(ordinary, part))[-1]


def test_the_page_of_a_comparison_has_its_summary_its_intervals_and_its_gaps(
    ordinary: Analysis, dear: Analysis
) -> None:
    page = render_page(compare(ordinary, dear), (), names=("runs/<a>", "runs/b"), simulated=True)
    assert "runs/&lt;a&gt;" in page
    assert "<a>" not in page
    assert "SIMULATED" in page
    assert "Changed: forward energy more" in page
    assert page.count('<span class="interval more">') == 3
    assert page.count('<span class="interval same">') == 11  # load busy has no ratio
    assert "too few executions for an interval of p95" in page
