"""`analyse` for users: an `Analysis` that notebooks display as its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from gpu_profile.analysis import account
from gpu_profile.recording import Recording
from gpu_profile.recording.nccl_inspector import Collective
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds


class AnalysisReport(account.Analysis):
    """An `Analysis` with its view in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from gpu_profile.analysis.views.page import render_page
        from gpu_profile.report.page import framed

        return framed(render_page(self, title="gpu-profile"))


def analyse(
    recording: Recording,
    *,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    devices: Sequence[str] = (),
    collectives: Sequence[Collective] = (),
) -> AnalysisReport:
    """Join, pool and judge a recording.

    `devices`: UUIDs of the devices on which executions ran that name none. Default: the devices that their process
    expected, else the recording's first GPU. UsageError if the recording has no samples of one of the `devices`.
    `collectives`: those of the recorded processes, from NCCL Inspector.
    """
    analysis = account.analyse(recording, thresholds=thresholds, devices=devices, collectives=collectives)
    return AnalysisReport(*(getattr(analysis, each.name) for each in fields(analysis)))
