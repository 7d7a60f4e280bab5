"""The full-screen view, driven by keys as on a terminal."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from gpu_profile.errors import UsageError
from gpu_profile.monitor.top.app import TopApp, regime_colours
from gpu_profile.monitor.top.snapshot import DeviceLine, ProcessLine, RegionLine, TopSnapshot
from gpu_profile.regimes import Regime

SNAPSHOT = TopSnapshot(
    source="simulated",
    time="12:00:00",
    devices=tuple(
        DeviceLine(f"GPU-{n}", str(n), f"card-{n}", n, utilisation=(n * 3 % 8) / 8, power_w=float(n)) for n in range(8)
    ),
    processes=(ProcessLine("0", 0, 4242, "[bold]trainer"),),
    regions=(RegionLine("step", 2.0, 10.0, 0.0, 0.5, 0.0, "MEMORY_BOUND"), RegionLine("load", regime="UNKNOWN")),
    region_note="a note",
)


class Screen:
    """The app on a terminal of a test. `snapshot` may be replaced."""

    def __init__(self, size: tuple[int, int] = (80, 24)) -> None:
        self.size = size
        self.snapshot = SNAPSHOT
        self.error: UsageError | None = None
        self.app = TopApp(self.take)
        self.pilot: Pilot[None]

    def take(self) -> TopSnapshot:
        if self.error is not None:
            raise self.error
        return self.snapshot

    def run(self, test: Callable[["Screen"], Awaitable[None]]) -> int | None:
        """Run the test while the app runs. Returns its exit code."""

        async def inside() -> None:
            async with self.app.run_test(size=self.size) as self.pilot:
                await self.pilot.pause()
                await test(self)

        asyncio.run(inside())
        return self.app.return_code

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        await self.pilot.pause()
        return self.text

    @property
    def text(self) -> str:
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    def cards(self) -> str:
        return "".join(re.findall(r"card-(\d)", self.text))

    def colours(self, word: str) -> set[str]:
        """The colours of the segments with this text."""
        return {
            segment.style.color.name
            for strip in self.app.screen._compositor.render_strips()
            for segment in strip
            if word in segment.text and segment.style is not None and segment.style.color is not None
        }


def test_the_screen_has_title_tables_and_keys() -> None:
    async def look(screen: Screen) -> None:
        rows = screen.text.splitlines()
        assert len(rows) == 24
        assert {len(row) for row in rows} == {80}
        assert rows[0].startswith("gpu-profile top  simulated  8 devices  12:00:00")
        assert rows[1].startswith("GPU▲ name")
        assert screen.cards() == "01234567"
        assert "[bold]trainer" not in screen.text, "below the screen's last row"
        assert rows[-1].startswith(" q quit  s sort  r reverse")
        assert "[bold]trainer" in await screen.press("end"), "text is never markup"
        assert "4242" in await screen.press("home", "tab")

    Screen().run(look)


def test_q_and_ctrl_c_quit() -> None:
    for key in ("q", "ctrl+c"):

        async def leave(screen: Screen, key: str = key) -> None:
            await screen.press(key)
            assert not screen.app.is_running

        assert Screen().run(leave) == 0


def test_s_and_r_sort_the_selected_table() -> None:
    async def sort(screen: Screen) -> None:
        await screen.press("s", "s")
        assert "util▼" in screen.text
        assert screen.cards() == "".join(str(n) for n in sorted(range(8), key=lambda n: -(n * 3 % 8)))
        await screen.press("r")
        assert "util▲" in screen.text
        assert screen.cards() == "".join(str(n) for n in sorted(range(8), key=lambda n: n * 3 % 8))
        text = await screen.press("tab", "tab", "r")
        assert re.search(r"step .*\n *load ", text), "regions in falling order of their names"

    Screen().run(sort)


def test_a_filter_is_applied_while_it_is_typed_kept_by_enter_and_cleared_by_escape() -> None:
    async def find(screen: Screen) -> None:
        await screen.press("slash", *"card-5")
        assert screen.app.view.filter == "card-5"
        assert screen.cards().startswith("55"), "in the title and in the table"
        await screen.press("enter", "s")
        assert (screen.app.view.filter, screen.app.view.sort) == ("card-5", {"devices": 1}), "keys are keys again"
        await screen.press("slash", "q")
        assert screen.app.is_running
        assert "none matches 'q'" in screen.text, "a new filter takes the place of the old one"
        await screen.press("escape")
        assert screen.app.view.filter == ""
        assert screen.cards() == "01234567"

    Screen().run(find)


def test_p_stops_the_drawing_and_continues_it() -> None:
    async def pause(screen: Screen) -> None:
        await screen.press("p")
        assert "PAUSED" in screen.text
        screen.snapshot = replace(SNAPSHOT, time="12:34:56")
        screen.app.refresh_snapshot()
        assert "12:34:56" not in await screen.press("s")
        assert "12:34:56" in await screen.press("p")
        assert "PAUSED" not in screen.text

    Screen().run(pause)


@pytest.mark.parametrize("key", ["h", "question_mark"])
def test_help_lists_the_keys_and_leaves_the_view_as_it_was(key: str) -> None:
    async def ask(screen: Screen) -> None:
        before = screen.text
        shown = await screen.press(key)
        assert "pause and continue the drawing" in shown
        assert "It ends no process." in shown
        screen.app.refresh_snapshot()
        assert "pause and continue" in await screen.press("s", "p"), "other keys do nothing meanwhile"
        assert await screen.press(key) == before
        await screen.press(key, "q")
        assert screen.app.is_running, "q leaves the help"

    Screen().run(ask)


def test_the_view_fits_each_new_size() -> None:
    async def resize(screen: Screen) -> None:
        for columns, rows in ((160, 50), (40, 10), (20, 5), (1, 1), (80, 24)):
            await screen.pilot.resize_terminal(columns, rows)
            await screen.pilot.pause()
            await screen.pilot.pause()
            lines = screen.text.splitlines()
            assert (len(lines), {len(line) for line in lines}) == (rows, {columns})
            if columns == 160:
                assert "PCIe rx MB/s" in screen.text
                assert "a note" in screen.text

    Screen().run(resize)


def test_arrows_and_page_keys_scroll() -> None:
    async def scroll(screen: Screen) -> None:
        body = screen.app.query_one("#body")
        await screen.press("down", "down")
        assert body.scroll_target_y == 2
        await screen.press("pagedown")
        assert body.scroll_target_y > 2
        await screen.press("pageup", "pageup", "up")
        assert body.scroll_target_y == 0

    Screen().run(scroll)


def test_a_timers_last_call_while_the_view_is_closed_draws_nothing() -> None:
    async def close(screen: Screen) -> None:
        await screen.app.query_one("#body").remove()
        screen.app.refresh_snapshot()

    assert Screen().run(close) in (None, 0)


def test_a_wrong_device_ends_the_view_with_its_error() -> None:
    screen = Screen()
    screen.error = UsageError("device 'GPU-x': no device has this UUID")

    async def nothing(_: Screen) -> None:
        pass

    assert screen.run(nothing) == 2
    assert screen.app.error is screen.error


def test_regimes_have_the_colours_of_the_reports_and_unknown_is_not_red() -> None:
    colours = regime_colours()
    assert {str(regime) for regime in Regime} <= set(colours)

    async def look(screen: Screen) -> None:
        assert screen.colours("MEMORY_BOUND") == {colours["MEMORY_BOUND"]}
        (unknown,) = screen.colours("UNKNOWN")
        red, green, blue = (int(unknown[at : at + 2], 16) for at in (1, 3, 5))
        assert max(red, green, blue) - min(red, green, blue) < 32, "a grey"

    Screen((100, 40)).run(look)


def test_without_colours_the_text_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def coloured(screen: Screen) -> None:
        texts.append(screen.text)

    async def plain(screen: Screen) -> None:
        texts.append(screen.text)
        assert screen.colours("MEMORY_BOUND") <= {"default"}
        assert screen.colours("card-0") <= {"default"}

    texts: list[str] = []
    Screen((100, 40)).run(coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    Screen((100, 40)).run(plain)
    assert texts[0] == texts[1]
