"""What a reader of the console gets: 80 columns, grouped reasons, remedies, and figures that agree or say why not."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.analysis import EVIL, Run, analysed, hostile, loads_nothing, parsed, two_devices

from gpu_profile.analysis import Analysis, Comparison, Difference, Outcome, compare, parse_gate
from gpu_profile.analysis.comparison.page import render_page
from gpu_profile.analysis.comparison.text import gaps, render_comparison, summary
from gpu_profile.analysis.views.conclusion import conclusion
from gpu_profile.analysis.views.labels import labels
from gpu_profile.analysis.views.text import advice, listed, reasons, render, render_regions
from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.join.remedies import remedy
from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP, TIMING
from gpu_profile.join.unmixing.windows.probes import ProbeGroup
from gpu_profile.regimes import Regime
from gpu_profile.units import percent, si

PREFIXES = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
MIG = "MIG-4fcd5654-1bc6-5cbc-936b-764183ae326c"


@pytest.fixture(scope="module")
def ordinary() -> Analysis:
    return analysed(Run().recording())


@pytest.fixture(scope="module")
def dear() -> Analysis:
    return analysed(Run(seed=2, dear=1.2).recording())


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
    long = long_names(analysed(two_devices(Run())))
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
    omitted = re.search(r"^not shown in 80 columns: (p95,[^()]*)\(--json\s+has all\)$", narrow, re.MULTILINE)
    assert omitted is not None
    assert "per call ±" in omitted[1]
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
    assert "a longer run" in remedy(LOCK_STEP)
    assert "stream" in remedy(LOCK_STEP)


@pytest.mark.parametrize(
    "reason",
    [
        *(LOCK_STEP, TIMING, "too few samples (3)", "not identifiable yet: ±3 around 4", "no samples cover the region"),
        *(f"not identifiable: {group}" for group in ProbeGroup),
        "not identifiable: 3 ± 1 is not possible",
        "no samples describe 40% of its time",
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
    assert re.match(r"No difference shown: 12 quantities: step duration by up to \d+ %, ", same)
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
    page = render_page(replace(compare(ordinary, dear), simulated_b=True), (), names=("runs/<a>", "runs/b"))
    assert "runs/&lt;a&gt;" in page
    assert "<a>" not in page
    assert '<span class="mark">SIMULATED</span>' in page
    assert "<p>SIMULATED GPUs in B</p>" in page
    assert "Changed: forward energy more" in page
    assert page.count('<span class="interval more">') == 3
    assert page.count('<span class="interval same">') == 11  # load busy has no ratio
    assert "too few executions for an interval of p95" in page


def test_the_page_of_a_comparison_is_one_file_that_loads_nothing(ordinary: Analysis, dear: Analysis) -> None:
    text = render_page(compare(ordinary, dear), (), names=("a", "b"))
    page = loads_nothing(text)
    assert {"table", "br", "meta"} <= {*page.seen}


def test_names_cannot_break_out_of_the_page_of_a_comparison() -> None:
    analysis = analysed(hostile(Run()))
    comparison = compare(analysis, analysis)
    comparison = replace(comparison, only_a=(EVIL,), notes=(f"A: {EVIL}",))
    gate = parse_gate("forward.energy > +5%")
    judged = [(replace(gate, text=EVIL), comparison.differences[0], Outcome.UNTOLD)]
    text = render_page(comparison, judged, names=(EVIL, "<i> & \"'"))
    plain = parsed(render_page(compare(analysed(Run().recording()), analysed(Run().recording())), (), names=("a", "b")))
    page = parsed(text)
    assert page.loads == []
    assert page.seen.count("script") == plain.seen.count("script") == 1
    assert not {"b", "i"} & ({*page.seen} - {*plain.seen})
    assert "alert(1)" in text
    assert "<script>alert" not in text
    assert "&lt;i&gt; &amp; &quot;&#x27;" in text


def test_a_limit_is_rounded_up_and_quantities_without_a_ratio_have_one() -> None:
    differences = (
        Difference("a", "duration", "s", 1.0, 1.0, (-0.1, 0.121), (-0.1, 0.121)),
        Difference("a", "busy", "s", 0.0, 0.0, (-2.612e-6, 2.67e-6)),
        Difference("a", "failures", "1", 0.0, 0.01, (-0.01, 0.05201)),
        Difference("a", "energy", "J", 0.0, 0.0, (0.0, 0.0)),
    )
    _, same = summary(Comparison(differences, (), (), ()))
    assert same == (
        "No difference shown: 4 quantities: a duration by up to 13 %, a busy by up to 2.7 µs, a failures by up to "
        "5.3 pp and a energy by up to 0 J may have changed unseen"
    )


@given(st.floats(1e-9, 1e9), st.sampled_from(["s", "J", "1"]), st.booleans())
def test_no_limit_is_below_its_value(value: float, unit: str, ratio: bool) -> None:
    found = Difference("a", "busy", unit, 1.0, 1.0, (-value, value), (-value, value) if ratio and unit != "1" else None)
    _, same = summary(Comparison((found,), (), (), ()))
    match = re.search(r"up to ([\d.]+) ([%a-zA-Zµ]+)", same)
    assert match is not None
    scale = {"%": 0.01, "pp": 0.01} | {p + u: f for p, f in PREFIXES.items() for u in "sJ"}
    assert float(match[1]) * scale[match[2]] >= value * (1 - 1e-5)


def test_a_remedy_names_the_side_that_needs_it() -> None:
    once, often = analysed(Run(calls=1).recording()), analysed(Run().recording())
    lines = gaps(compare(once, often))
    assert any(
        re.search(r": A: only 1 execution, 8 are needed for an interval \(a longer run helps\)$", e) for e in lines
    )
    refusals = (("A", "too few samples"), ("B", LOCK_STEP))
    apart = Difference("a", "busy", "s", None, None, refusals=refusals)
    (line,) = gaps(Comparison((apart,), (), (), ()))
    assert line == f"a busy: A: too few samples (a longer run helps); B: {LOCK_STEP} ({remedy(LOCK_STEP)})"


def test_a_narrow_comparison_names_the_columns_that_it_omits(ordinary: Analysis, dear: Analysis) -> None:
    narrow = render_comparison(compare(ordinary, dear), (), width=70)
    assert "not shown in 70 columns: change, difference (--json has all)" in narrow
    assert "not shown" not in render_comparison(compare(ordinary, dear), ())


# ---------------------------------------------------------------------- the result in sentences


def test_the_conclusion_names_the_region_with_the_highest_energy_its_share_its_regime_and_the_next_step(
    ordinary: Analysis,
) -> None:
    (forward,) = ordinary.of("forward")
    part, whole = forward.summary.energy_j, ordinary.devices[0].energy_j
    assert part is not None
    assert whole is not None
    used, regime, step = conclusion(ordinary)
    assert used == (
        f"Region forward used {part / whole * 100:.0f} % of the energy of GPU 0 ({si(part, 'J')} of {si(whole, 'J')}), "
        "in 60 calls."
    )
    assert regime == f"It is {forward.verdict.regime}, with a confidence of {percent(forward.verdict.confidence, 0)}."
    assert step == f"Next step: {forward.verdict.advice}."
    assert f"{used} {regime}\n" in f"{render(ordinary)}\n"


def with_summaries(analysis: Analysis, **changes: object) -> Analysis:
    uses = (replace(use, summary=replace(use.summary, **changes)) for use in analysis.regions)  # type: ignore[arg-type]
    return replace(analysis, regions=tuple(uses))


def test_the_conclusion_says_nothing_that_was_not_measured(ordinary: Analysis) -> None:
    def first(analysis: Analysis) -> str:
        return conclusion(analysis)[0]

    uncertain = with_summaries(ordinary, energy_half_width=None)
    unmetered = replace(ordinary, devices=tuple(replace(use, energy_j=None) for use in ordinary.devices))
    unpowered = with_summaries(ordinary, energy_j=None)
    assert re.match(r"Region forward used about \d+ % of the energy of GPU 0 ", first(uncertain))
    assert re.match(r"Region forward used [\d.]+ kJ of energy on GPU 0, in 60 calls\.$", first(unmetered))
    assert re.match(r"Region forward used \d+ % of the busy time of GPU 0 ", first(unpowered))
    assert conclusion(with_summaries(ordinary, energy_j=None, busy_s=None)) == []
    assert conclusion(refused(ordinary, LOCK_STEP))[1:] == [f"Its regime is UNKNOWN: {LOCK_STEP}."]
