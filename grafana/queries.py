"""PromQL from the catalogue's rows, so that no name of a metric or a label is ever typed twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.metric import Metric, label
from gpu_profile.catalogue.metrics import BUSY, DEVICE_INFO, OBSERVED, REGION_BUSY, REGION_BUSY_UNCERTAIN, REGION_CALLS
from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile.catalogue.signals import ENERGY, THROTTLES, THROTTLES_SEEN

#: How long a rate looks back: Grafana makes it at least four scrapes, so that a rate always has two samples.
RATE = "$__rate_interval"
#: The time range that the dashboard shows.
RANGE = "$__range"

#: How a legend calls a GPU. An index alone is ambiguous as soon as there are two nodes; a model's name is long and
#: often that of every GPU, so it is left to the table.
GPU_NAME = "GPU {{index}}{{slice}} on {{instance}}"

#: Labels of a target of Prometheus, of a node, and of a device. Two jobs that scrape one exporter see one node.
TARGET = "cluster, job, instance"
NODE = "cluster, instance"
DEVICE = "cluster, instance, hw_id"

#: Labels that make a region's series one region. `cluster`, `namespace` and `version` come from the scrape's
#: configuration: without them they are empty, and all match.
KEYS = "cluster, namespace, job, service_name, version, region"
#: Those of a region over all its versions, which replace each other.
ANY_VERSION = "cluster, namespace, job, service_name, region"
#: How a legend calls a region: equal names of two services or versions stay apart.
REGION_NAME = "{{region}} · {{namespace}} {{job}} {{service_name}} {{version}}"
#: Below this utilisation a GPU counts as idle, as in the alert on idle GPUs.
IDLE = "0.05"

_NODES = 'cluster=~"$cluster", instance=~"$instance"'
_PROGRAMS = 'cluster=~"$cluster", namespace=~"$namespace", job=~"$job"'

Labels = Mapping[str, str | tuple[str, ...]]


class Once(str):
    """The series that `selector` selects, once for each value of the labels `keys`: the current value of each.

    Several scrape jobs of one exporter would otherwise double sums, counts and lines. Functions over a window, such as
    `rate`, are computed for each series before this choice, and added up within a job: a counter may go on under other
    labels, such as those of a new pod.
    """

    __slots__ = ("keys", "selector")
    selector: str
    keys: str

    def __new__(cls, selector: str, keys: str) -> Self:
        """Of this selector."""
        made = super().__new__(cls, f"max by ({keys}) ({selector})")
        made.selector, made.keys = selector, keys
        return made

    def once(self, growth: str) -> str:
        """`growth`, which has one value for each series, once for each value of the labels."""
        return by(self.keys, by(f"job, {self.keys}", growth), "max")

    def where(self, matcher: str) -> Once:
        """The same with one more matcher of labels."""
        return Once(f"{self.selector[:-1]}, {matcher}}}", self.keys)


#: A function below that chooses the series of a metric by the dashboard's variables; of devices they are `Once`.
Select = Callable[..., str]
SelectDevices = Callable[..., Once]


def series(metric: Metric, labels: Labels | None = None, *, scope: str = "", part: str = "") -> str:
    """A selector of `metric`'s series.

    `labels` maps OpenTelemetry attributes to a value, or to several of which any matches; ValueError for an attribute
    that the metric does not have. `scope` is added as it is. `part` is a histogram's `_bucket`, `_sum` or `_count`.
    """
    matchers = [scope] if scope else []
    for attribute, value in (labels or {}).items():
        if attribute not in metric.labels:
            raise ValueError(f"{metric.otel} has no attribute {attribute!r}, only {', '.join(metric.labels)}")
        operator, text = ("=", value) if isinstance(value, str) else ("=~", "|".join(value))
        matchers.append(f'{label(attribute)}{operator}"{text}"')
    name = metric.prometheus + part
    return f"{name}{{{', '.join(matchers)}}}" if matchers else name


def of_nodes(metric: Metric, labels: Labels | None = None) -> Once:
    """The series of the nodes that the dashboard's variables choose."""
    return _once(metric, labels, _NODES)


def of_gpus(metric: Metric, labels: Labels | None = None) -> Once:
    """The series of the GPUs that the dashboard's variables choose."""
    return _once(metric, labels, _NODES + (', hw_id=~"$gpu"' if "hw.id" in metric.labels else ""))


def of_regions(metric: Metric, labels: Labels | None = None, *, part: str = "") -> str:
    """The series of the regions that the dashboard's variables choose.

    A program is scraped as another instance than its node's exporter, so regions are chosen by the GPUs that they ran
    on; one that ran on no known GPU has no `hw_id` and always shows. Only regions of received spans have a service.
    """
    scope = f'{_PROGRAMS}, service_name=~"$service", version=~"$version", region=~"$region"'
    return series(metric, labels, scope=scope + (', hw_id=~"$gpu|"' if "hw.id" in metric.labels else ""), part=part)


def of_job(metric: Metric, labels: Labels | None = None, *, part: str = "") -> str:
    """The series of the regions of a training job, on all its GPUs."""
    return series(metric, labels, scope=f'{_PROGRAMS}, region=~"$region"', part=part)


def of_job_gpus(metric: Metric, labels: Labels | None = None) -> Once:
    """The series of a training job's GPUs."""
    return _once(metric, labels, 'cluster=~"$cluster", hw_id=~"$gpu"')


def of_fleet(metric: Metric, labels: Labels | None = None, *, part: str = "") -> str:
    """The series of all regions of the chosen clusters."""
    return series(metric, labels, scope='cluster=~"$cluster"', part=part)


def _once(metric: Metric, labels: Labels | None, scope: str) -> Once:
    keys = (NODE, *(label(attribute) for attribute in metric.labels))
    return Once(series(metric, labels, scope=scope), ", ".join(keys))


def over(function: str, selector: str, window: str) -> str:
    """A function of PromQL over a window of time, of each series."""
    if isinstance(selector, Once):
        return selector.once(over(function, selector.selector, window))
    return f"{function}({selector}[{window}])"


def rate(selector: str, window: str = RATE) -> str:
    """Growth of a counter in a second."""
    return over("rate", selector, window)


def increase(selector: str, window: str = RANGE) -> str:
    """Growth of a counter over `window`."""
    return over("increase", selector, window)


def increase_from_first(selector: str, window: str = RANGE) -> str:
    """Growth over `window` of a counter that begins with its first event: one that was not there before grew from 0."""
    if isinstance(selector, Once):
        return selector.once(increase_from_first(selector.selector, window))
    return f"(\n  {selector}\n  unless {selector} offset {window}\n  or {increase(selector, window)}\n)"


def first_of(*alternatives: str) -> str:
    """All series of the alternatives; of equal labels the earlier one."""
    return "(" + "\n  or ".join(alternatives) + ")"


def known(value: str, certain: str, uncertain: str) -> str:
    """What follows from a region's certain share, where no more than a twentieth of it is uncertain."""
    return f"{value}\n  unless\n{uncertain} > 0.05 * {certain}"


def by(labels: str, expression: str, function: str = "sum") -> str:
    """`expression` summed (or whatever `function` says) over all labels but these."""
    return f"{function} by ({labels}) ({expression})"


def with_slice(info: str) -> str:
    """`info` with a label `slice` that tells a GPU's MIG instances apart: they share its index, and often a model."""
    return f'label_replace({info}, "slice", " MIG $1", "hw_id", "MIG-(.{{4}}).*")'


def named(expression: str, labels: str = "hw_name, index, slice") -> str:
    """`expression` with the name, index and slice of each device.

    `topk` keeps one info series a device where two exporters, or one across an upgrade, describe the same one.
    """
    info = with_slice(f"topk by (hw_id) (1, {DEVICE_INFO.prometheus})")
    return f"{expression} * on (hw_id) group_left ({labels}) {info}"


def named_with_node(expression: str) -> str:
    """The same with the device's node, for an expression that has one series for each `hw_id`."""
    return named(expression, "hw_name, index, instance, slice")


def physical(expression: str) -> str:
    """`expression` without MIG instances, so that a sum does not count a GPU and its parts."""
    return f"{expression} and on (hw_id) {series(DEVICE_INFO, {'kind': DeviceKind.GPU.value})}"


def parents(infos: str, target: str = f"{TARGET}, ") -> str:
    """The GPUs that contain the MIG instances of `infos`, one series each for the labels of `target`.

    Instances of a GPU may have equal labels but for their own UUID, which the parent's replaces.
    """
    return f'label_replace({by(f"{target}hw_parent", infos, "count")}, "hw_id", "$1", "hw_parent", "(.+)")'


def throttled(growth: Callable[[str], str], select: Select = of_gpus) -> str:
    """`growth` (a rate, an increase) of the time for which clocks were held down, by reason.

    Where the driver has no counter of it, the exporter adds up what it saw: nobody has both for one reason.
    """
    counted, seen = (growth(select(metric_of(rows[0]))) for rows in (THROTTLES, THROTTLES_SEEN))
    return f"({counted} or {seen})"


def fraction(part: str, whole: str) -> str:
    """How many of `whole` are in `part`, as a label `text` such as “1 of 8”. No series where nothing reports it."""
    count = f"(count({part}) or 0 * count({whole}))"
    both = f'count_values("part", {count}) * on () group_left (whole) count_values("whole", count({whole}))'
    return f'label_join({both}, "text", " of ", "part", "whole")'


def because(reason: str, expression: str, keys: str = DEVICE) -> str:
    """The GPUs of `expression` (the nodes, with `NODE`), one series each, with a label `reason`."""
    return f'label_replace({by(keys, expression, "max")}, "reason", "{reason}", "", "")'


def idle_time(select: Select, window: str = RANGE) -> str:
    """Seconds in which each GPU ran no kernel, of the time that its busy counter has seen."""
    seen, busy = (increase(select(metric), window) for metric in (OBSERVED, BUSY))
    return f"clamp_min({physical(f'({seen} - {busy})')}, 0)"


def idle_energy(select: Select) -> str:
    """Joules of each GPU at times at which it was idle: its mean power there, times the time that was seen."""
    power = by("cluster, instance, hw_id", rate(select(metric_of(ENERGY))))
    utilisation = by("cluster, instance, hw_id", rate(select(BUSY)))
    mean_power = f"avg_over_time(({power} * ({utilisation} < bool {IDLE}))[{RANGE}:{RATE}])"
    return physical(f"({mean_power} * {by('cluster, instance, hw_id', increase(select(OBSERVED)))})")


def by_regime(select: Select, growth: Callable[[str], str] = rate) -> str:
    """GPU time by regime: each region's busy time, shared out by the verdicts on its calls."""
    busy = " + ".join(by(KEYS, growth(select(metric))) for metric in (REGION_BUSY, REGION_BUSY_UNCERTAIN))
    calls = growth(select(REGION_CALLS))
    shares = f"{by(f'{KEYS}, regime', calls)} / on ({KEYS}) group_left () ({by(KEYS, calls)} > 0)"
    return by("regime", f"({busy}) * on ({KEYS}) group_right () ({shares})")
