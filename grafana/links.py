"""The ways from a value to another dashboard. A row of a table leads by its columns, a line by its labels."""

from __future__ import annotations

from typing import Final

from panels import Link


def uid(name: str) -> str:
    """The part of a dashboard's address for the name of its file."""
    return f"gpu-profile-{name}"


_NODE: Final = ("instance", "${__data.fields.Node}")
_GPU: Final = ("gpu", "${__data.fields.UUID}")
TO_NODE: Final = Link("The node", uid("node"), (_NODE,))
TO_GPU: Final = Link("The GPU", uid("gpu"), (_NODE, _GPU))
#: The same on the dashboard of one node, whose tables need no column for it.
TO_GPU_OF_NODE: Final = Link("The GPU", uid("gpu"), (("instance", "${instance}"), _GPU))
LINE_TO_GPU: Final = Link("The GPU", uid("gpu"), (("instance", "${instance}"), ("gpu", "${__field.labels.hw_id}")))
#: Only by labels that each region has: Grafana does not replace the name of a column that a table lacks.
TO_REGION: Final = Link(
    "The region", uid("regions"), (("job", "${__data.fields.Job}"), ("region", "${__data.fields.Region}"))
)
