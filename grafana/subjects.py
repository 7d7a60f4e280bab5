"""The names of nodes, GPUs and regions in an alert's text.

A GPU's index, model and holder are looked up as the text is written. As labels of the alert they would begin a new
alert each time that a pod changes.
"""

from __future__ import annotations

from typing import Final

from queries import by, series

from gpu_profile.catalogue.allocation import ALLOCATION_INFO
from gpu_profile.catalogue.metric import Metric
from gpu_profile.catalogue.metrics import DEVICE_INFO

NODE: Final = "{{ $labels.instance }}"
REGION: Final = (
    "Region {{ $labels.region }} ({{ with $labels.namespace }}{{ . }}/{{ end }}{{ $labels.job }}"
    "{{ with $labels.service_name }}, {{ . }}{{ end }})"
)


def _asked(expression: str) -> str:
    """The answer to a query about the alert's GPU. `expression` has `%q` for its node, then for its UUID."""
    return f"printf `{expression}` $labels.instance $labels.hw_id | query"


def _of_gpu(metric: Metric) -> str:
    return series(metric, scope="instance=%q, hw_id=%q")


# A GPU that has disappeared is described as it was.
_DESCRIBED: Final = _asked(f"last_over_time({_of_gpu(DEVICE_INFO)}[1d])")
_HOLDERS: Final = _asked(by("k8s_namespace_name, k8s_pod_name, slurm_job_id", _of_gpu(ALLOCATION_INFO), "count"))
_HELD: Final = (
    f"{{{{ range {_HOLDERS} }}}}{{{{ with .Labels.k8s_pod_name }}}}, pod {{{{ . }}}}{{{{ end }}}}"
    "{{ with .Labels.slurm_job_id }}, job {{ . }}{{ end }}{{ end }}"
)
#: Index, model, node, pods and jobs of a GPU; its UUID where nothing describes it.
GPU: Final = (
    f"GPU {{{{ with {_DESCRIBED} }}}}{{{{ . | first | label `index` }}}} ({{{{ . | first | label `hw_name` }}}})"
    f"{{{{ else }}}}{{{{ $labels.hw_id }}}}{{{{ end }}}} on {{{{ $labels.instance }}}}{_HELD}"
)
