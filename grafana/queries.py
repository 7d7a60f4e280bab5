"""PromQL from the catalogue's rows, so that no name of a metric or a label is ever typed twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.metric import Metric, label
from gpu_profile.catalogue.metrics import DEVICE_INFO
from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile.catalogue.signals import THROTTLES, THROTTLES_SEEN

#: How long a rate looks back: Grafana makes it at least four scrapes, so that a rate always has two samples.
RATE = "$__rate_interval"
#: The time range that the dashboard shows.
RANGE = "$__range"

#: How a legend calls a GPU. An index alone is ambiguous as soon as there are two nodes; a model's name is long and
#: often that of every GPU, so it is left to the table.
GPU_NAME = "GPU {{index}}{{slice}} on {{instance}}"

#: How an alert calls a GPU.
GPU = "GPU {{ $labels.hw_id }} on {{ $labels.instance }}"

Labels = Mapping[str, str | tuple[str, ...]]


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


def of_gpus(metric: Metric, labels: Labels | None = None) -> str:
    """The series of the GPUs that the dashboard's variables choose."""
    scope = 'instance=~"$instance"'
    if "hw.id" in metric.labels:
        scope += ', hw_id=~"$gpu"'
    return series(metric, labels, scope=scope)


def of_regions(metric: Metric, *, part: str = "") -> str:
    """The series of the regions that the dashboard's variables choose.

    A program is scraped as another instance than its node's exporter, so regions are chosen by the GPUs that they ran
    on; one that ran on no known GPU has no `hw_id` and always shows. Only regions of received spans have a service.
    """
    scope = 'service_name=~"$service", region=~"$region"'
    if "hw.id" in metric.labels:
        scope += ', hw_id=~"$gpu|"'
    return series(metric, scope=scope, part=part)


def rate(selector: str, window: str = RATE) -> str:
    """Growth of a counter in a second."""
    return f"rate({selector}[{window}])"


def increase(selector: str, window: str = RANGE) -> str:
    """Growth of a counter over `window`."""
    return f"increase({selector}[{window}])"


def increase_from_first(selector: str, window: str = RANGE) -> str:
    """Growth over `window` of a counter that begins with its first event: one that was not there before grew from 0."""
    return f"(\n  {selector}\n  unless {selector} offset {window}\n  or {increase(selector, window)}\n)"


def known(value: str, certain: str, uncertain: str) -> str:
    """What follows from a region's certain share, where no more than a twentieth of it is uncertain."""
    return f"{value}\n  unless\n{uncertain} > 0.05 * {certain}"


def mean(selector: str, window: str = RATE) -> str:
    """Mean of a gauge's readings over `window`."""
    return f"avg_over_time({selector}[{window}])"


def by(labels: str, expression: str, function: str = "sum") -> str:
    """`expression` summed (or whatever `function` says) over all labels but these."""
    return f"{function} by ({labels}) ({expression})"


def with_slice(info: str) -> str:
    """`info` with a label `slice` that tells a GPU's MIG instances apart: they share its index, and often a model."""
    return f'label_replace({info}, "slice", " MIG $1", "hw_id", "MIG-(.{{4}}).*")'


def named(expression: str) -> str:
    """`expression` with the name, index and slice of each device.

    `topk` keeps one info series a device where two exporters, or one across an upgrade, describe the same one.
    """
    info = with_slice(f"topk by (hw_id) (1, {DEVICE_INFO.prometheus})")
    return f"{expression} * on (hw_id) group_left (hw_name, index, slice) {info}"


def physical(expression: str) -> str:
    """`expression` without MIG instances, so that a sum does not count a GPU and its parts."""
    return f"{expression} and on (hw_id) {series(DEVICE_INFO, {'kind': DeviceKind.GPU.value})}"


def throttled(growth: Callable[[str], str], select: Callable[[Metric], str] = of_gpus) -> str:
    """`growth` (a rate, an increase) of the time for which clocks were held down, by reason.

    Where the driver has no counter of it, the exporter adds up what it saw: nobody has both for one reason.
    """
    counted, seen = (growth(select(metric_of(rows[0]))) for rows in (THROTTLES, THROTTLES_SEEN))
    return f"({counted} or {seen})"
