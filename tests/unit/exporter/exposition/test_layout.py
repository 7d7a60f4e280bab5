"""What is kept between scrapes, what goes when there is too much, and renderings from many threads."""

import math
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpu_profile.catalogue import METRICS, Instrument, Metric
from gpu_profile.catalogue import metrics as m
from gpu_profile.catalogue.allocation import ALLOCATION_INFO, PROCESS_MEMORY
from gpu_profile.catalogue.links import NVLINK_LINKS
from gpu_profile.catalogue.metrics import metric_of
from gpu_profile.catalogue.signals import POWER, UTILIZATION
from gpu_profile_exporter.exposition.budget import Candidate, SeriesPriority, left_out, rank
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.naming.semconv import Semconv
from gpu_profile_exporter.naming.series import Naming, Series, TextFamily
from gpu_profile_exporter.readings.readings import MetricReading

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
GAUGE = Metric("gpu_profile.test.gauge", "", Instrument.GAUGE, "A gauge", ("hw.id", "which"))
COUNTER = Metric("gpu_profile.test", "{thing}", Instrument.COUNTER, "A counter", ("hw.id", "which"))


class Asked(Semconv):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.series_calls: list[tuple[str, Mapping[str, str]]] = []
        self.devices: list[Mapping[str, Mapping[str, str]]] = []

    def series(self, metric: Metric, attributes: Mapping[str, str]) -> Sequence[Series]:
        self.series_calls.append((metric.otel, attributes))
        return super().series(metric, attributes)

    def about(self, devices: Mapping[str, Mapping[str, str]]) -> None:
        self.devices.append(devices)


def parsed(
    readings: Iterable[MetricReading], naming: Naming | None = None, *, budget: int = 10_000
) -> dict[str, float]:
    """The values by name and sorted labels, which both formats must agree on."""
    kept = list(readings)
    exposition = Exposition(lambda: kept, naming, process=False, budget=budget)
    text, other = exposition.render()[0].decode(), exposition.render(OPENMETRICS)[0].decode()
    found = []
    for families in (parse_text(text), parse_openmetrics(other)):  # type: ignore[no-untyped-call]
        samples = [sample for family in families for sample in family.samples]
        values = {f"{s.name}{sorted(s.labels.items())}": s.value for s in samples}
        assert len(values) == len(samples)
        found.append({name: value for name, value in values.items() if "gpu_profile_series" not in name})
    assert found[0] == found[1]
    return found[0]


def of(which: str, hw_id: str = "GPU-a") -> dict[str, str]:
    return {"hw.id": hw_id, "which": which}


def test_a_scheme_of_names_is_asked_once_for_each_series_while_the_set_of_series_stays() -> None:
    naming, power = Asked(), {"hw.id": "GPU-a"}
    values = iter(range(100))
    exposition = Exposition(lambda: [MetricReading(metric_of(POWER), power, next(values))], naming, process=False)
    first = exposition.render()[0]
    asked = len(naming.series_calls)
    assert b'hw_power_watts{hw_id="GPU-a"} 0.0\n' in first
    assert b'hw_power_watts{hw_id="GPU-a"} 1.0\n' in exposition.render()[0]
    assert b'hw_power_watts{hw_id="GPU-a"} 2.0\n' in exposition.render(OPENMETRICS)[0]
    assert len(naming.series_calls) == asked


def test_a_series_that_comes_or_goes_is_all_that_a_scheme_of_names_is_asked_for() -> None:
    naming = Asked()
    readings = [MetricReading(GAUGE, of(str(i)), i) for i in range(10)]
    exposition = Exposition(lambda: list(readings), naming, process=False)
    exposition.render()
    naming.series_calls.clear()
    gone = readings.pop(3)
    assert b'which="3"' not in exposition.render()[0]
    assert naming.series_calls == []
    readings += [gone, MetricReading(GAUGE, of("new"), 1)]
    text = exposition.render()[0]
    assert b'which="3"' in text
    assert b'which="new"' in text
    assert naming.series_calls == [(GAUGE.otel, of("3")), (GAUGE.otel, of("new"))]


def test_attributes_that_are_made_anew_but_say_the_same_keep_the_layout() -> None:
    naming = Asked()
    exposition = Exposition(lambda: [MetricReading(GAUGE, of("a"), 1)], naming, process=False)
    exposition.render()
    naming.series_calls.clear()
    exposition.render()
    assert naming.series_calls == []


def test_all_series_are_asked_for_anew_when_what_a_device_is_changes() -> None:
    naming = Asked()
    info = {"hw.id": "GPU-a", "hw.driver_version": "570"}
    power = of("power")
    exposition = Exposition(
        lambda: [MetricReading(m.DEVICE_INFO, info, 1), MetricReading(GAUGE, power, 1)], naming, process=False
    )
    exposition.render()
    assert naming.devices == [{"GPU-a": info}]
    naming.series_calls.clear()
    info = {"hw.id": "GPU-a", "hw.driver_version": "580"}
    exposition.render()
    assert naming.devices[-1] == {"GPU-a": info}
    assert (GAUGE.otel, power) in naming.series_calls


def test_families_of_the_same_name_stand_together_whatever_the_order_of_readings() -> None:
    readings = [
        MetricReading(metric, of(which, hw_id), 1) for hw_id, which, metric in product("ab", "xy", (GAUGE, COUNTER))
    ]
    assert len(parsed(readings)) == 8


class Scaled:
    """Publishes everything twice, once in thousandths."""

    def series(self, metric: Metric, attributes: Mapping[str, str]) -> Sequence[Series]:
        if metric is not metric_of(POWER):
            return ()
        labels = tuple(attributes.items())
        return [
            Series(TextFamily("a_watts", "gauge", "", "watts"), labels, 1.0),
            Series(TextFamily("A_MILLI", "untyped", "", ""), labels, 1000.0),
        ]

    def about(self, devices: Mapping[str, Mapping[str, str]]) -> None:
        pass


def test_a_reading_is_published_under_each_name_in_that_names_unit() -> None:
    assert parsed([MetricReading(metric_of(POWER), {}, 0.25)], Scaled()) == {"a_watts[]": 0.25, "A_MILLI[]": 250}


def test_a_series_that_comes_twice_is_published_once_and_counted() -> None:
    readings = [MetricReading(GAUGE, of("a"), 1), MetricReading(GAUGE, of("a"), 2), MetricReading(GAUGE, of("b"), 3)]
    exposition = Exposition(lambda: readings, process=False)
    text = exposition.render()[0].decode()
    assert text.count('which="a"') == 1
    assert 'gpu_profile_series_dropped_total{reason="duplicate"} 1.0' in text
    assert 'gpu_profile_series_dropped_total{reason="duplicate"} 2.0' in exposition.render()[0].decode()


@pytest.mark.parametrize("value", [float("nan"), None, "many", 10**400])
def test_what_is_no_number_is_absent_and_counted_and_the_rest_is_published(value: object) -> None:
    readings = [MetricReading(GAUGE, of("a"), value), MetricReading(GAUGE, of("b"), 3)]  # type: ignore[arg-type]
    exposition = Exposition(lambda: readings, process=False)
    text = exposition.render()[0].decode()
    assert 'which="a"' not in text
    assert 'gpu_profile_test_gauge{hw_id="GPU-a",which="b"} 3.0' in text
    assert 'gpu_profile_series_dropped_total{reason="not_a_number"} 1.0' in text


def test_truth_values_and_whole_numbers_are_written_as_floats() -> None:
    readings = [
        MetricReading(GAUGE, of("true"), True),
        MetricReading(GAUGE, of("whole"), 7),
        MetricReading(GAUGE, of("inf"), -1e999),
    ]
    text = Exposition(lambda: readings, process=False).render()[0].decode()
    assert [line.rpartition(" ")[2] for line in text.splitlines() if "_gauge{" in line] == ["1.0", "7.0", "-Inf"]


@pytest.mark.parametrize("values", [(1e999, -1e999), (1e308, 1e308), (-1e999, 0.5), (1e999, float("nan"), -1e999)])
def test_infinite_and_very_large_values_are_published_and_only_nan_is_left_out(values: tuple[float, ...]) -> None:
    numbers = {f"{i}": value for i, value in enumerate(values) if not math.isnan(value)}
    found = parsed(MetricReading(GAUGE, of(f"{i}"), value) for i, value in enumerate(values))
    assert {name.split("'")[-2]: value for name, value in found.items() if "test_gauge" in name} == numbers


@given(st.lists(st.lists(st.sampled_from((0.0, 1.5, 7, True, -1e999)), min_size=3, max_size=3), min_size=2, max_size=6))
def test_each_scrape_has_the_values_of_its_moment_whichever_of_them_changed(moments: list[list[float]]) -> None:
    labels, turn = [of(which) for which in "abc"], iter(moments)
    exposition = Exposition(
        lambda: [MetricReading(GAUGE, *pair) for pair in zip(labels, next(turn), strict=True)], process=False
    )
    for values in moments:
        text = exposition.render()[0].decode()
        assert [float(line.split()[-1]) for line in text.splitlines() if "test_gauge{" in line] == values


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=()), max_size=30), st.floats(0)), max_size=12))
def test_whatever_readings_hold_both_parsers_read_the_same_from_it(pairs: list[tuple[str, float]]) -> None:
    parsed(MetricReading(metric, of(which), value) for which, value in pairs for metric in (GAUGE, COUNTER))


# ---------------------------------------------------------------------- budget


def test_what_goes_first_is_what_is_not_about_devices_as_such() -> None:
    assert rank(PROCESS_MEMORY) is SeriesPriority.PROCESS
    assert rank(metric_of(NVLINK_LINKS[0])) is SeriesPriority.LINK
    assert rank(ALLOCATION_INFO) is SeriesPriority.ALLOCATION
    assert rank(metric_of(UTILIZATION)) is SeriesPriority.DEVICE
    assert all(
        rank(metric) is SeriesPriority.CORE for metric in (m.DEVICE_INFO, m.DEVICE_UP, m.STATUS, m.BUSY, m.SAMPLES)
    )


def test_every_rank_but_allocation_is_that_of_some_metric_of_the_catalogue() -> None:
    assert {rank(metric) for metric in METRICS} >= {
        SeriesPriority.CORE,
        SeriesPriority.DEVICE,
        SeriesPriority.GROUP,
        SeriesPriority.LINK,
    }


TEXTS = st.sampled_from((b"", b"a", b"ab", b"b"))
CANDIDATES = st.sets(st.builds(Candidate, st.sampled_from(SeriesPriority), st.integers(0, 3), TEXTS))


@given(CANDIDATES, st.integers(-1, 40))
def test_the_budget_holds_unless_the_core_alone_is_more_and_higher_ranks_go_first(
    candidates: set[Candidate], budget: int
) -> None:
    gone = left_out(candidates, budget)
    kept = candidates - gone
    core = {candidate for candidate in candidates if candidate.rank is SeriesPriority.CORE}
    assert core <= kept
    assert len(kept) <= max(budget, len(core))
    assert not gone or len(kept) >= budget
    assert all(lost > held for lost in gone for held in kept)


def crowd(n: int) -> list[MetricReading]:
    processes = [MetricReading(PROCESS_MEMORY, {"hw.id": "GPU-a", "process.pid": str(pid)}, pid) for pid in range(n)]
    return [
        *processes,
        MetricReading(metric_of(POWER), {"hw.id": "GPU-a"}, 1),
        MetricReading(m.DEVICE_UP, {"hw.id": "GPU-a"}, 1),
    ]


def test_series_over_the_budget_are_left_out_counted_and_never_those_of_the_core() -> None:
    readings = crowd(50)
    exposition = Exposition(lambda: readings, process=False, budget=20)
    text = exposition.render()[0].decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert "gpu_profile_series 20.0" in lines
    assert len(lines) == 20
    assert {'gpu_profile_device_up{hw_id="GPU-a"} 1.0', 'hw_power_watts{hw_id="GPU-a"} 1.0'} <= set(lines)
    assert 'gpu_profile_series_dropped_total{reason="over_budget"} 36.0' in lines
    assert 'gpu_profile_series_dropped_total{reason="over_budget"} 72.0' in exposition.render()[0].decode()


def test_a_series_that_comes_twice_takes_one_place_in_the_budget() -> None:
    readings = [reading for reading in crowd(50) for _ in range(2)]
    text = Exposition(lambda: readings, process=False, budget=20).render()[0].decode()
    assert len([line for line in text.splitlines() if not line.startswith("#")]) == 20


def test_what_the_process_says_of_itself_is_within_the_budget_and_always_there() -> None:
    text = Exposition(lambda: crowd(50), budget=20).render()[0].decode()
    assert len([line for line in text.splitlines() if not line.startswith("#")]) == 20
    few = Exposition(lambda: crowd(50), budget=1).render()[0].decode()
    assert "process_cpu_seconds_total" in few
    assert "gpu_profile_device_up" in few
    assert "gpu_profile_process_memory_bytes" not in few


def test_the_same_series_are_left_out_whatever_the_order_of_readings() -> None:
    def names(readings: list[MetricReading]) -> set[str]:
        return set(parsed(readings, budget=20))

    assert names(crowd(50)) == names(crowd(50)[::-1])


# ---------------------------------------------------------------------- many at once


def test_a_rendering_that_fails_leaves_the_next_one_whole() -> None:
    sources = iter([None, [MetricReading(GAUGE, of("a"), 14)]])

    def read() -> list[MetricReading]:
        found = next(sources)
        if found is None:
            raise RuntimeError("no luck")
        return found

    exposition = Exposition(read, process=False)
    with pytest.raises(RuntimeError, match="no luck"):
        exposition.render()
    assert b"14.0" in exposition.render()[0]


def test_renderings_from_many_threads_while_series_come_and_go_are_each_whole() -> None:
    count = iter(range(10_000))

    def read() -> list[MetricReading]:
        n = next(count)
        return [MetricReading(GAUGE, of(str(i)), n) for i in range(n % 7)]

    exposition = Exposition(read, process=False)

    def scrape(i: int) -> set[float]:
        text = exposition.render(OPENMETRICS if i % 2 else "")[0].decode()
        return {float(line.rpartition(" ")[2]) for line in text.splitlines() if "_gauge{" in line}

    with ThreadPoolExecutor(8) as pool:
        assert all(len(values) <= 1 for values in pool.map(scrape, range(300)))


# ---------------------------------------------------------------------- memory

HEAVY = ("numpy", "prometheus_client", "importlib.metadata", "email", "ssl", "asyncio")
SCRAPED = (
    "attribution",
    "config",
    "exposition.exposition",
    "naming.dcgm",
    "naming.semconv",
    "push",
    "reader.usage",
    "readings.node_readings",
)


@pytest.mark.parametrize(
    ("modules", "heavy"), [(SCRAPED, HEAVY), (("cli", "node", "server"), HEAVY[:2])], ids=["a scrape", "the exporter"]
)
def test_what_takes_much_memory_is_not_imported_for(modules: tuple[str, ...], heavy: tuple[str, ...]) -> None:
    imports = "\n".join(f"import gpu_profile_exporter.{module}" for module in modules)
    program = f"import sys\n{imports}\nprint([name for name in {heavy!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")
