"""Which GPUs answer too slowly to be read with the others, and which promptly enough to be so again. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

#: A GPU whose reads take longer than this, `SLOW_ROUNDS` times in a row, would hold the others up.
SLOW_S: Final = 0.15
SLOW_ROUNDS: Final = 3
#: One that has answered faster than `PROMPT_S` for so long is read with the others again.
PROMPT_S: Final = 0.05
PROMPT_FOR_S: Final = 10.0
#: After a GPU held the others up, the next is taken to do so after this long: where all calls take long, as on a
#: machine that has too much to do, more processes would make it worse.
HELD_UP_PAUSE_S: Final = 2.0


class Pace:
    """How long GPUs take to answer."""

    def __init__(self) -> None:
        self._slow: Counter[str] = Counter()
        self._prompt_since: dict[int, float] = {}
        self._held_up = float("-inf")

    def slow(self, uuid: str, took_ns: int) -> bool:
        """Note the longest call to a GPU in a round; returns whether it has become too slow, once."""
        self._slow[uuid] = self._slow[uuid] + 1 if took_ns > SLOW_S * 1e9 else 0
        if self._slow[uuid] < SLOW_ROUNDS:
            return False
        self._slow[uuid] = 0
        return True

    def answered(self, index: int, took_ns: int, now: float) -> None:
        """Note the longest call to a GPU that has a reader of its own, by NVML index."""
        if took_ns > PROMPT_S * 1e9:
            self._prompt_since.pop(index, None)
        else:
            self._prompt_since.setdefault(index, now)

    def held_up(self, apart: int, gpus: int, now: float) -> bool:
        """Whether GPUs are held up by one, which would then be the last of so many of `gpus` that are read apart.

        At most half may be: else it is not they that are slow.
        """
        if 2 * apart > gpus or now - self._held_up < HELD_UP_PAUSE_S:
            return False
        self._held_up = now
        return True

    def prompt(self, now: float) -> list[int]:
        """The GPUs that have answered promptly for long enough."""
        return [index for index, since in self._prompt_since.items() if now - since > PROMPT_FOR_S]

    def forget(self, index: int) -> None:
        """Start timing this GPU again."""
        self._prompt_since.pop(index, None)
