"""Server and consumer spans, and spans around regions, that get GPU attributes without being regions.

A span that fits the rule becomes an execution of a region with the span's name. It is pooled, judged and joined like
any other. This module handles the start and the end of spans; the session does the rest.
"""

from __future__ import annotations

import fnmatch
import logging
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import ref

from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from gpu_profile.errors import UsageError
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, Span

_log = logging.getLogger("gpu_profile")

#: The variable with the rule for spans that get GPU attributes, if the code sets none.
VARIABLE: Final = "GPU_PROFILE_SPANS"
#: Spans that may run at once. Any more get no GPU attributes.
MOST_LIVE: Final = 10_000
#: The number of enclosing spans that are searched for a region's parent.
MOST_DEEP: Final = 64
#: Overlooked spans between two removals of spans that were deleted without an end.
_SWEEP: Final = 1_000
#: The tracer of regions: their own spans are ignored here.
_OWN_SCOPE: Final = "gpu_profile"
#: The attribute of an ended span with its execution, for the provider's other processors.
_NOTE: Final = "_gpu_profile_execution"
_KINDS: Final = {kind.name.lower(): kind for kind in SpanKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpanRule:
    """Selects the spans that get GPU attributes: by kind, scope or name, or because a region runs inside.

    `kinds`: any of `server`, `client`, `producer`, `consumer`, `internal`. `scopes` and `names` are shell patterns for
    the name of the instrumentation scope and of the span. `not_scopes` and `not_names` exclude spans and take
    precedence. Raises UsageError for an unknown kind.
    """

    kinds: frozenset[str] = frozenset({"server", "consumer"})
    scopes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    containing_regions: bool = True
    not_scopes: tuple[str, ...] = ()
    not_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kinds) - set(_KINDS))
        if unknown:
            raise UsageError(f"{unknown[0]!r} is no kind of span: choose among {', '.join(_KINDS)}")

    @property
    def empty(self) -> bool:
        """Whether the rule fits no span."""
        return not (self.kinds or self.scopes or self.names or self.containing_regions)


def parse_rule(text: str) -> ServerSpanRule:
    """Read a rule: words separated by commas, for instance `server,regions,scope=myapp.*,!name=GET /health*`.

    A word is a kind of span, `regions` (spans with a region inside), `scope=PATTERN`, `name=PATTERN`, `all` or `none`.
    `!` before `scope` or `name` excludes spans. Raises UsageError for other words.
    """
    kinds: set[str] = set()
    lists: dict[str, list[str]] = {"scope": [], "name": [], "!scope": [], "!name": []}
    regions = False
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(f"the rule for spans with GPU attributes is empty: {text!r}; use `none` for no spans")
    if "none" in words and len(words) > 1:
        raise UsageError(f"`none` excludes all other words: {text!r}")
    for word in words:
        key, given, pattern = word.partition("=")
        if word in _KINDS:
            kinds.add(word)
        elif word == "regions":
            regions = True
        elif word == "all":
            kinds.update(_KINDS)
        elif given and pattern and key in lists:
            lists[key].append(pattern)
        elif word != "none":
            raise UsageError(
                f"{word!r} does not select spans for GPU attributes: "
                f"use {', '.join(_KINDS)}, regions, all, none, scope=PATTERN, name=PATTERN, !scope=… or !name=…"
            )
    return ServerSpanRule(
        kinds=frozenset(kinds),
        scopes=tuple(lists["scope"]),
        names=tuple(lists["name"]),
        containing_regions=regions,
        not_scopes=tuple(lists["!scope"]),
        not_names=tuple(lists["!name"]),
    )


class CompiledSpanRule:
    """A compiled rule."""

    def __init__(self, rule: ServerSpanRule) -> None:
        # A tuple, searched by identity: hashing an enumeration calls a Python function.
        self.kinds = tuple(_KINDS[kind] for kind in sorted(rule.kinds))
        #: Whether spans of other kinds never fit.
        self.by_kind_alone = not (rule.scopes or rule.names)
        self._scopes, self._names = _pattern(rule.scopes), _pattern(rule.names)
        self._not_scopes, self._not_names = _pattern(rule.not_scopes), _pattern(rule.not_names)

    def fits(self, kind: SpanKind, scope: str, name: str) -> bool:
        """Whether the rule selects a span of this kind, instrumentation scope and name."""
        return (
            kind in self.kinds
            or (self._names is not None and self._names(name) is not None)
            or (self._scopes is not None and self._scopes(scope) is not None)
        ) and self.allows(scope, name)

    def allows(self, scope: str, name: str) -> bool:
        """Whether no pattern excludes it."""
        return not (
            (self._not_names is not None and self._not_names(name))
            or (self._not_scopes is not None and self._not_scopes(scope))
        )


class _Taken(NamedTuple):
    execution: Execution
    session: Session
    #: Calls `_gone` when the span is deleted without an end.
    watch: ref[Span]


class AdoptedSpans:
    """The running spans of this process, with executions for the spans that fit `rule`.

    `session()` returns the session for new executions, and starts it if necessary. `innermost()` returns the innermost
    region that runs in the calling thread or task. `overlooked` counts the spans beyond `most_live`. `forgotten` counts
    the fitting spans that were deleted without an end.
    """

    def __init__(
        self,
        rule: ServerSpanRule,
        *,
        session: Callable[[], Session],
        innermost: Callable[[], Execution | None],
        most_live: int = MOST_LIVE,
    ) -> None:
        self.rule = rule
        self.overlooked = 0
        self.forgotten = 0
        self._session = session
        self._innermost = innermost
        self._most_live = most_live
        self._choice = CompiledSpanRule(rule)
        # Weak references, so that a span without an end can be deleted.
        self._live: dict[int, ref[Span]] = {}
        self._taken: dict[int, _Taken] = {}
        self._lock = threading.RLock()
        self._failed = False

    def started(self, span: Span) -> None:
        """Called when a span starts, in its thread or task, once for each processor of the provider."""
        try:
            scope, context = span.instrumentation_scope, span.context
            if context is None or (scope is not None and scope.name == _OWN_SCOPE):
                return
            span_id = context.span_id
            if span_id in self._live or (len(self._live) >= self._most_live and not self._room()):
                return
            self._live[span_id] = ref(span)
            choice = self._choice
            if choice.by_kind_alone and span.kind not in choice.kinds:
                return
            if choice.fits(span.kind, scope.name if scope is not None else "", span.name):
                self._take(span, self._parent(self._innermost(), span.parent.span_id if span.parent else 0))
        except Exception as error:  # noqa: BLE001 - the host's span must start
            self._report(error)

    def ended(self, span: ReadableSpan) -> Execution | None:
        """The execution of this ended span, or None. The same for each processor of the provider."""
        try:
            context = span.context
            if context is None:
                return None
            span_id = context.span_id
            taken = self._taken.get(span_id) if self._taken else None
            if taken is None:
                self._live.pop(span_id, None)
                noted: tuple[int, Execution] | None = span.__dict__.get(_NOTE)
                # A copy of the span has the note of the original, but is joined already: their ids differ.
                return noted[1] if noted is not None and noted[0] == id(span) else None
            vars(span)[_NOTE] = id(span), taken.execution  # before it is removed: another thread may look it up
            if not taken.execution.end_ns:
                _end(taken.execution, span)
            self._taken.pop(span_id, None)
            self._live.pop(span_id, None)
        except Exception as error:  # noqa: BLE001 - the host's span must go on
            self._report(error)
            return None
        return taken.execution

    def around(self, region: Execution | None) -> Execution | None:
        """The parent of a region that begins in this thread or task. `region`: the innermost that runs there.

        If the rule includes spans with regions inside, the spans around it become executions now.
        """
        if not self._live:
            return region
        try:
            span_id = trace.get_current_span().get_span_context().span_id
            if region is not None and region.span_id == span_id:
                return region
            return self._parent(region, span_id, late=self.rule.containing_regions)
        except Exception as error:  # noqa: BLE001 - the host's region must begin
            self._report(error)
            return region

    def forget(self) -> None:
        """In a forked child: drop the parent's spans."""
        self._live, self._taken, self._lock = {}, {}, threading.RLock()

    def _room(self) -> bool:
        """Whether there is room for another span, after removing deleted ones. Counts the span if there is none."""
        if self.overlooked % _SWEEP == 0:
            for span_id, span in list(self._live.items()):
                if span() is None:
                    self._live.pop(span_id, None)
        if len(self._live) < self._most_live:
            return True
        if not self.overlooked:
            _log.warning("gpu-profile: more than %d spans run at once; the rest get no GPU values", self._most_live)
        self.overlooked += 1
        return False

    # ------------------------------------------------------------------ nesting

    def _parent(self, region: Execution | None, span_id: int, *, late: bool = False) -> Execution | None:
        """The inner one of `region` and the execution around the span `span_id`. `late`: add the spans in between."""
        between: list[Span] = []
        enclosing: Execution | None = None
        for _ in range(MOST_DEEP):
            taken = self._taken.get(span_id)
            if taken is not None:
                enclosing = taken.execution
                break
            live = self._live.get(span_id)
            span = None if live is None else live()
            if span is None:
                break
            between.append(span)
            span_id = span.parent.span_id if span.parent else 0
        parent = _inner(region, enclosing)
        if late:
            for span in reversed(between):
                scope = span.instrumentation_scope
                if self._choice.allows(scope.name if scope is not None else "", span.name):
                    parent = self._take(span, parent)
        return parent

    def _take(self, span: Span, parent: Execution | None) -> Execution:
        context = span.get_span_context()
        span_id = context.span_id
        session = self._session()
        with self._lock:
            taken = self._taken.get(span_id)
            if taken is not None:  # by another thread in which a region began at the same time
                return taken.execution
            execution = Execution(span.name, parent, None, None)
            execution.start_ns = max(1, span.start_time or 0)
            execution.span_id, execution.trace_id = span_id, context.trace_id
            execution.sampled = context.trace_flags.sampled
            self._taken[span_id] = _Taken(execution, session, ref(span, partial(self._gone, span_id)))
        if span.end_time is not None:  # meanwhile, in another thread
            _end(execution, span)
            self._taken.pop(span_id, None)
        session.began.append(execution)
        return execution

    def _gone(self, span_id: int, _: object) -> None:
        # The garbage collector may call this in any thread at any point, so it takes no lock.
        taken = self._taken.pop(span_id, None)
        self._live.pop(span_id, None)
        if taken is not None:
            self.forgotten += 1
            taken.execution.failed = True
            taken.execution.end_ns = max(taken.execution.start_ns, taken.session.clock.now_ns())

    def _report(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            _log.warning("gpu-profile: a span has no GPU attributes: %r", error)


def _end(execution: Execution, span: ReadableSpan) -> None:
    execution.name = span.name  # servers rename the span once the route is resolved
    execution.failed = span.status.status_code is StatusCode.ERROR
    execution.end_ns = max(execution.start_ns, span.end_time or 0)  # set last: the join then reads the other fields


def _inner(region: Execution | None, foreign: Execution | None) -> Execution | None:
    """The one that is inside the other; `foreign` if neither is."""
    ancestor = region
    while ancestor is not None and ancestor is not foreign:
        ancestor = ancestor.parent
    return region if foreign is None or ancestor is foreign else foreign


def _pattern(globs: Iterable[str]) -> Callable[[str], object] | None:
    joined = "|".join(fnmatch.translate(glob) for glob in globs)
    return re.compile(joined).match if joined else None


#: The current tracker of spans, read directly on hot paths; None while there is none.
current: AdoptedSpans | None = None


def watch(
    rule: ServerSpanRule, *, session: Callable[[], Session], innermost: Callable[[], Execution | None]
) -> AdoptedSpans | None:
    """Watch the spans of this process by this rule from now on; None if the rule fits no span."""
    global current  # noqa: PLW0603 - one process, one rule
    current = None if rule.empty else AdoptedSpans(rule, session=session, innermost=innermost)
    return current


def leave() -> None:
    """Stop watching spans. Executions of running spans end now."""
    global current
    left, current = current, None
    if left is not None:
        for taken in list(left._taken.values()):
            taken.execution.end_ns = max(taken.execution.start_ns, taken.session.clock.now_ns())
        left.forget()


@process.in_child
def _forget() -> None:
    if current is not None:
        current.forget()
