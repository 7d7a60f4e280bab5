"""The full-screen view: draws frames with Textual, and turns keys into the state of the view.

The only module that imports Textual.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gpu_profile.errors import UsageError
from gpu_profile.monitor.top.cells import TextLine, fit
from gpu_profile.monitor.top.frame import TopFrame, ViewState, draw
from gpu_profile.monitor.top.snapshot import TopSnapshot
from gpu_profile.regimes.palette import COLOURS

#: The time between two drawings, in s.
PERIOD_S: Final = 1.0
KEYS: Final = " q quit  s sort  r reverse  / filter  p pause  tab table  h help  ↑↓ scroll"
HELP: Final = """\
 gpu-profile top

 q, ctrl-c     quit
 tab           select the next table (its heading is highlighted)
 s             sort the selected table by its next column
 r             reverse its order
 /             filter devices, processes, holders and regions
               (enter keeps the filter, escape clears it)
 p             pause and continue the drawing; sampling goes on
 ↑ ↓ page home end  scroll
 h, ?          this page

 – is an unknown value, ~ an uncertain one.
 A blank in a chart is a time without samples.
 It ends no process.
"""
_TONES: Final = {
    "title": "reverse",
    "head": "bold",
    "selected": "bold reverse",
    "soft": "dim",
    "bad": "bold red",
    "warn": "yellow",
    "busy": "#849dff",
    "power": "#f5a15a",
}


def regime_colours() -> Mapping[str, str]:
    """The colours of regimes on dark ground."""
    return {str(regime): colour.dark for regime, colour in COLOURS.items()}


class HelpScreen(ModalScreen[None]):
    """The list of keys. Any of its keys closes it."""

    CSS = "HelpScreen { align: center middle; } #help { width: auto; height: auto; border: round $foreground; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,h,question_mark,escape,enter", "app.pop_screen", "close")]

    def compose(self) -> ComposeResult:
        """The page."""
        yield Static(Text(HELP), id="help")


class TopApp(App[None]):
    """Shows the snapshots of `take`, a new one every `PERIOD_S`. `take` may raise UsageError, which ends the view."""

    CSS = """
    #title, #keys { height: 1; }
    #body { height: 1fr; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    #body > Static { width: auto; height: auto; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True, system=True),
        Binding("tab", "table(1)", "table", priority=True),
        Binding("shift+tab", "table(-1)", "table", priority=True),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "clear", "clear the filter"),
        Binding("p", "pause", "pause"),
        Binding("h,question_mark", "help", "help"),
    ]

    def __init__(self, take: Callable[[], TopSnapshot]) -> None:
        # With the terminal's own colours, NO_COLOR removes all of them. Else they become shades of grey.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.view = ViewState()
        self.error: UsageError | None = None
        self._take = take
        self._snapshot = TopSnapshot()
        self._frame: TopFrame | None = None
        self._styles = _TONES | dict(regime_colours())
        if self.no_color:
            self.theme = "ansi-dark"

    def compose(self) -> ComposeResult:
        """Title, body, filter and keys from top to bottom."""
        yield Static(id="title")
        with VerticalScroll(id="body"):
            yield Static(id="lines")
        yield Input(placeholder="filter: enter keeps it, escape clears it", id="filter", compact=True)
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Draw at once and from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                loop.add_signal_handler(number, partial(self.exit, return_code=128 + number))
        self.query_one("#body").focus()
        self.set_interval(PERIOD_S, self.refresh_snapshot)
        self.call_after_refresh(self.refresh_snapshot)

    def refresh_snapshot(self) -> None:
        """Take the present snapshot and draw it, unless the view is paused."""
        if self.view.paused:
            return
        try:
            self._snapshot = self._take()
        except UsageError as error:
            self.error = error
            self.exit(return_code=error.exit_code)
            return
        self.redraw()

    def redraw(self) -> None:
        """Draw the last snapshot in the present state and size."""
        screen = self.screen_stack[0]
        if not screen.query("#body"):
            return  # a timer's last call, while the view is being closed
        body = screen.query_one("#body", VerticalScroll)
        self._frame = draw(self._snapshot, self.view, max(1, self.size.width - 1))
        screen.query_one("#title", Static).update(self._text(self._frame.title))
        screen.query_one("#keys", Static).update(Text(fit(KEYS, self.size.width), style="dim"))
        body.query_one("#lines", Static).update(Text("\n").join(map(self._text, self._frame.body)))

    def _text(self, line: TextLine) -> Text:
        return Text.assemble(
            *((piece.text, self._styles.get(piece.tone, "")) for piece in line), no_wrap=True, overflow="crop", end=""
        )

    def on_resize(self, _: events.Resize) -> None:
        """Draw for the new size."""
        self.call_after_refresh(self.redraw)

    # ------------------------------------------------------------------ keys

    def _change(self, view: ViewState) -> None:
        self.view = view
        self.redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's signature
        """Only quitting works while another screen is shown."""
        return len(self.screen_stack) == 1 or action in ("quit", "pop_screen")

    def action_table(self, step: int) -> None:
        """Select the next table, and scroll to it."""
        self._change(self.view.with_next_table(self._snapshot, step))
        start = self._frame.starts.get(self.view.table, 0) if self._frame is not None else 0
        self.query_one("#body").scroll_to(y=start, animate=False)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._change(self.view.with_next_sort())

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._change(self.view.reversed())

    def action_pause(self) -> None:
        """Pause, or continue."""
        self._change(replace(self.view, paused=not self.view.paused))
        self.refresh_snapshot()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(HelpScreen())

    def action_filter(self) -> None:
        """Ask for the filter."""
        line = self.query_one("#filter", Input)
        line.display = True
        line.focus()

    def action_clear(self) -> None:
        """Show all rows again."""
        self.query_one("#filter", Input).value = ""
        self._leave_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is typed."""
        self._change(replace(self.view, filter=event.value))

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Keep the filter."""
        self._leave_filter()

    def _leave_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one("#body").focus()
