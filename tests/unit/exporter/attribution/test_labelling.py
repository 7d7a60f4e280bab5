from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.metrics import BUILD_INFO
from gpu_profile.catalogue.signals import POWER
from gpu_profile_exporter.attribution.labelling import labelled
from gpu_profile_exporter.naming.schemes import choose
from gpu_profile_exporter.readings.readings import MetricReading

WATTS = MetricReading(metric_of(POWER), {"hw.id": "GPU-1", "hw.type": "gpu"}, 71.0)
OTHER = MetricReading(metric_of(POWER), {"hw.id": "GPU-2", "hw.type": "gpu"}, 72.0)
BUILD = MetricReading(BUILD_INFO, {"version": "1"}, 1)
HOLDERS = {"GPU-1": {"k8s.pod.name": "train-0", "hw.type": "of the holder"}}


def test_only_series_of_a_device_that_is_held_get_the_holders_labels_and_keep_their_own() -> None:
    found = list(labelled([WATTS, OTHER, BUILD], lambda uuid: HOLDERS.get(uuid, {})))
    assert found[0].attributes == {"hw.id": "GPU-1", "hw.type": "gpu", "k8s.pod.name": "train-0"}
    assert found[0].value == 71.0
    assert found[1:] == [OTHER, BUILD]


def test_the_same_series_has_the_same_attributes_at_every_scrape() -> None:
    first, second = (next(labelled([WATTS], lambda uuid: HOLDERS.get(uuid, {}))) for _ in range(2))
    assert first.attributes is second.attributes


def test_labels_are_published() -> None:
    (reading,) = labelled([WATTS], lambda uuid: HOLDERS[uuid])
    (series,) = choose("semconv").series(reading.metric, reading.attributes)
    assert dict(series.labels)["k8s_pod_name"] == "train-0"
