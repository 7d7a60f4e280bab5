"""The dashboard of an LLM server: what its requests, tenants and tokens cost."""

from __future__ import annotations

from typing import Final

import board
from links import TO_GPU
from panels import COUNT, STAT, Column, Panel, Query, Section
from queries import by, fraction, increase, named_with_node, rate, series

from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.metric import Metric
from gpu_profile.catalogue.metrics import BUSY
from gpu_profile.catalogue.serving import (
    SERVING_CACHED,
    SERVING_DEVICE,
    SERVING_DEVICE_TIME,
    SERVING_ENERGY,
    SERVING_HALF_WIDTH,
    SERVING_LOST,
    SERVING_MESSAGES,
    SERVING_REFUSED,
    SERVING_REQUESTS,
    SERVING_SAVED,
    SERVING_TOKENS,
    SERVING_UNALLOCATED,
)
from gpu_profile.catalogue.signals import POWER

#: Costs may come in steps of up to a minute: shorter windows would show their arrival.
_STEP: Final = "2m"
_ENGINES: Final = 'cluster=~"$cluster", instance=~"$instance", engine=~"$engine"'
_ENGINE: Final = "cluster, instance, engine"
_TENANT: Final = f"{_ENGINE}, tenant"
_PHASE: Final = f"{_TENANT}, phase"
_NONE: Final = "No engine is published: start the exporter with --serving (docs/serving.md)"
_NO_TENANT: Final = "No tenant has a cost yet: docs/serving.md has the reasons"


def _of(metric: Metric, labels: dict[str, str | tuple[str, ...]] | None = None, *, tenants: bool = False) -> str:
    """The series of the engines, and of the tenants, that the variables choose."""
    return series(metric, labels, scope=_ENGINES + (', tenant=~"$tenant"' if tenants else ""))


def _per_1000(cost: str, labels: str) -> str:
    """`cost` (a growth) for 1,000 tokens, by these labels."""
    return f"1000 * {by(labels, cost)} / ({by(labels, rate(_of(SERVING_TOKENS, tenants=True)))} > 0)"


_ENERGY: Final = _of(SERVING_ENERGY, tenants=True)
_TIME: Final = _of(SERVING_DEVICE_TIME, tenants=True)
_SHARED: Final = f"sum({increase(_of(SERVING_ENERGY))})"
_REFUSED: Final = series(SERVING_UNALLOCATED, scope=f'{_ENGINES}, reason!="idle"')
_IDLE: Final = _of(SERVING_UNALLOCATED, {"reason": "idle"})
_UNALLOCATED: Final = by(f"{_ENGINE}, reason", rate(_of(SERVING_UNALLOCATED))) + " > 0"
_ALL: Final = f"({_SHARED} + sum({increase(_of(SERVING_UNALLOCATED))}))"

FIRST: Final = Section(
    "What does it cost?",
    (
        Panel(
            title="Requests",
            shows="Requests that ended in this range.",
            conclude="None: the engine is idle, or its spans do not reach the exporter.",
            do="Look at the spans that the exporter receives on the dashboard of trust.",
            empty=_NONE,
            queries=(Query(f"sum({increase(_of(SERVING_REQUESTS, tenants=True))})", "requests"),),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Energy of requests",
            shows="Energy that requests of these tenants have, in this range.",
            conclude="3.6 MJ are one kilowatt-hour.",
            do="Divide it by tenant in the table below.",
            empty=_NO_TENANT,
            unit="joule",
            queries=(Query(f"sum({increase(_ENERGY)})", "energy"),),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Price of requests",
            shows="GPU-seconds of these tenants' requests at the price of a GPU-hour that is typed in at the top, in "
            "its currency.",
            conclude="Idle time of the GPUs is not in it.",
            do="Use the recording rules for prices by the GPU's model.",
            empty=_NO_TENANT,
            queries=(Query(f"sum({increase(_TIME)}) / 3600 * $price", "price"),),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Idle share",
            shows="Share of the energy that was used while nothing was scheduled.",
            conclude="A high share is money for free capacity.",
            do="Fewer replicas at these hours, or larger batches.",
            empty=_NONE,
            unit="percentunit",
            queries=(Query(f"sum({increase(_IDLE)}) / ({_ALL} > 0)", "idle"),),
            thresholds=((None, "green"), (0.3, "orange")),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Refused share",
            shows="Share of the energy that could not be shared out, idle time not counted.",
            conclude="Orange: the tenants' energies are a part of the truth. The reasons are further down.",
            do="Each reason has a remedy in docs/serving.md.",
            empty=_NONE,
            unit="percentunit",
            queries=(Query(f"sum({increase(_REFUSED)}) / ({_ALL} > 0)", "refused"),),
            thresholds=((None, "green"), (0.05, "orange"), (0.5, "red")),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Engines that lost iterations",
            shows="Engines with gaps in the sequence of their messages in this range.",
            conclude="Orange: the energy of these gaps is nobody's.",
            do="Give the exporter more processor time, or a faster network.",
            empty=_NONE,
            queries=(
                Query(
                    fraction(
                        f"{by(_ENGINE, increase(_of(SERVING_LOST)))} > 0", by(_ENGINE, increase(_of(SERVING_MESSAGES)))
                    ),
                    "",
                ),
            ),
            alarm="orange",
            **COUNT,
        ),
    ),
)

TENANTS: Final = Section(
    "Who pays for what?",
    (
        Panel(
            title="Tenants",
            shows="What the requests of each tenant used in this range. The uncertainty is half of the 95 % interval, "
            "as a share of the energy.",
            conclude="A tenant with few tokens and much energy has short answers to long prompts, or small batches.",
            do="Compare tenants by the costs of 1,000 tokens below.",
            empty=_NO_TENANT,
            queries=(
                Query(by(_TENANT, increase(_of(SERVING_REQUESTS, tenants=True))), ""),
                Query(by(_TENANT, increase(_ENERGY)), ""),
                Query(by(_TENANT, _of(SERVING_HALF_WIDTH, tenants=True), "max"), ""),
                Query(by(_TENANT, increase(_TIME)), ""),
                Query(f"{by(_TENANT, increase(_TIME))} / 3600 * $price", ""),
                Query(by(_TENANT, increase(_of(SERVING_CACHED, tenants=True))), ""),
            ),
            kind="table",
            width=24,
            columns=(
                Column("engine", "Engine"),
                Column("tenant", "Tenant"),
                Column("Value #A", "Requests", "short", whole=True),
                Column("Value #B", "Energy", "joule"),
                Column("Value #C", "Uncertainty", "percentunit"),
                Column("Value #D", "GPU time", "s"),
                Column("Value #E", "Price", "none"),
                Column("Value #F", "Cached tokens", "short", whole=True),
            ),
            sort="Energy",
        ),
        Panel(
            title="Power by tenant",
            shows="Energy a second by tenant. The rest of the power is idle or refused.",
            conclude="The sum of all areas is the power of the engine's GPUs.",
            do="Find the reason of a refused area below.",
            least_step=_STEP,
            empty=_NO_TENANT,
            unit="watt",
            queries=(
                Query(by(_TENANT, rate(_ENERGY)), "{{tenant}} · {{engine}}"),
                Query(_UNALLOCATED, "{{reason}} · {{engine}}"),
            ),
            stacked=True,
        ),
        Panel(
            title="GPU time by tenant",
            shows="GPU-seconds a second by tenant: a share of one GPU.",
            conclude="Below the number of GPUs, the rest is idle or refused.",
            do="It is what the price of the GPUs is shared out by.",
            least_step=_STEP,
            empty=_NO_TENANT,
            unit="none",
            queries=(Query(by(_TENANT, rate(_TIME)), "{{tenant}} · {{engine}}"),),
            stacked=True,
        ),
    ),
)

TOKENS: Final = Section(
    "What does a token cost?",
    (
        Panel(
            title="Energy for 1,000 tokens",
            shows="Energy for 1,000 tokens by tenant and phase: computed tokens of prompts, and tokens of answers.",
            conclude="It falls with larger batches. A tenant with long contexts pays more for a token of an answer.",
            do="Compare it before and after a release.",
            least_step=_STEP,
            empty=_NO_TENANT,
            unit="joule",
            queries=(Query(_per_1000(rate(_ENERGY), _PHASE), "{{tenant}} · {{phase}} · {{engine}}"),),
            width=8,
        ),
        Panel(
            title="Price of 1,000 tokens",
            shows="GPU time for 1,000 tokens by tenant and phase, at the price that is typed in at the top.",
            conclude="Idle time is not in it: the price of a token at full load.",
            do="Add the idle share for a price that covers all costs.",
            least_step=_STEP,
            empty=_NO_TENANT,
            queries=(
                Query(f"{_per_1000(rate(_TIME), _PHASE)} / 3600 * $price", "{{tenant}} · {{phase}} · {{engine}}"),
            ),
            width=8,
        ),
        Panel(
            title="Tokens per second and GPU",
            shows="Tokens a second by phase, for each GPU of the engine.",
            conclude="The throughput that the price of a token follows from.",
            do="Compare engines and settings by it.",
            least_step=_STEP,
            empty=_NONE,
            unit="short",
            queries=(
                Query(
                    f"{by(f'{_ENGINE}, phase', rate(_of(SERVING_TOKENS, tenants=True)))}\n"
                    f"  / on ({_ENGINE}) group_left () {by(_ENGINE, _of(SERVING_DEVICE), 'count')}",
                    "{{phase}} · {{engine}}",
                ),
            ),
            width=8,
        ),
        Panel(
            title="Energy for 1,000 tokens by model",
            shows="Energy for 1,000 tokens by the model of the requests and phase, all tenants together.",
            conclude="Adapters of one base model share its iterations: they differ by their prompts and answers.",
            do="Compare models before you move a tenant to another one.",
            least_step=_STEP,
            empty=_NO_TENANT,
            unit="joule",
            queries=(
                Query(_per_1000(rate(_ENERGY), f"{_ENGINE}, model, phase"), "{{model}} · {{phase}} · {{engine}}"),
            ),
        ),
        Panel(
            title="Tokens by tenant",
            shows="Tokens a second of each tenant and phase.",
            conclude="Its shape differs from that of the energy: tokens differ in cost.",
            do="Do not share costs out by tokens.",
            least_step=_STEP,
            empty=_NONE,
            unit="short",
            queries=(
                Query(by(_PHASE, rate(_of(SERVING_TOKENS, tenants=True))), "{{tenant}} · {{phase}} · {{engine}}"),
            ),
        ),
        Panel(
            title="Saved by the prefix cache",
            shows="Estimate of the energy a second that cached tokens of prompts would have cost, by tenant, at the "
            "present price of one more token.",
            conclude="Without a cache, the power of the GPUs would be higher by the sum. No other panel contains it.",
            do="Route a tenant's requests to the same replica to raise it.",
            least_step=_STEP,
            empty="No engine reports cached tokens, or no price is certain enough yet",
            unit="watt",
            queries=(Query(by(_TENANT, rate(_of(SERVING_SAVED, tenants=True))), "{{tenant}} · {{engine}}"),),
        ),
    ),
)

TRUST: Final = Section(
    "What is not shared out?",
    (
        Panel(
            title="Energy without a tenant",
            shows="Energy a second by the reason why no tenant has it.",
            conclude="idle: nothing was scheduled. not_identifiable_yet: the first minutes. The others are losses.",
            do="docs/serving.md has the remedy for each reason.",
            least_step=_STEP,
            empty=_NONE,
            unit="watt",
            queries=(Query(_UNALLOCATED, "{{reason}} · {{engine}}"),),
            stacked=True,
            width=8,
        ),
        Panel(
            title="Messages and requests not used",
            shows="Messages of engines, or spans of requests, that were refused in this range, by reason.",
            conclude="A wrong version of the engine, or a sender that is not an engine.",
            do="docs/serving.md lists the reasons.",
            empty="No message or request was refused in this range",
            unit="short",
            queries=(
                Query(f"{by(f'{_ENGINE}, reason', increase(_of(SERVING_REFUSED)))} > 0", "{{reason}} · {{engine}}"),
            ),
            kind="bargauge",
            width=8,
        ),
        Panel(
            title="Uncertainty",
            shows="Half of the 95 % interval of each tenant's energy, as a share of it.",
            conclude="It falls as more windows are seen. Tenants with equal requests have wide intervals.",
            do="Wait some minutes after a start.",
            empty=_NO_TENANT,
            unit="percentunit",
            queries=(Query(by(_TENANT, _of(SERVING_HALF_WIDTH, tenants=True), "max"), "{{tenant}} · {{engine}}"),),
            width=8,
        ),
        Panel(
            title="GPUs of the engines",
            shows="Utilisation and power of each engine's GPUs now.",
            conclude="The time in which other programs use a GPU is refused, if the exporter can see the processes.",
            do="Open a GPU for its processes, and give other programs a GPU of their own.",
            least_step=_STEP,
            empty=_NONE,
            queries=(
                Query(
                    named_with_node(by("hw_id", f"{rate(series(BUSY))} and on (hw_id) {_of(SERVING_DEVICE)}", "max")),
                    "",
                ),
                Query(
                    named_with_node(
                        by("hw_id", f"{series(metric_of(POWER))} and on (hw_id) {_of(SERVING_DEVICE)}", "max")
                    ),
                    "",
                ),
            ),
            kind="table",
            width=24,
            height=6,
            columns=(
                Column("index", "GPU"),
                Column("hw_name", "Model"),
                Column("instance", "Node"),
                Column("Value #A", "Utilisation", "percentunit"),
                Column("Value #B", "Power", "watt"),
                Column("hw_id", "UUID", link=TO_GPU),
            ),
        ),
    ),
)

BOARD: Final = board.Board(
    "requests",
    "requests and tenants",
    "What do the requests, tenants and tokens of LLM servers cost, and how much of it is not known.",
    (*board.engines(), board.number("price", "Price of a GPU-hour", "2")),
    (FIRST, TENANTS, TOKENS, TRUST),
)
