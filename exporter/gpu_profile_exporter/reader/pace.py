"""Finds GPUs that answer too slowly to be read with the others, and those that are prompt again. No I/O."""

from __future__ import annotations

from collections import Counter
from typing import Final

#: A GPU with a longer call than this in `SLOW_ROUNDS` rounds in a row would delay the others.
SLOW_S: Final = 0.15
SLOW_ROUNDS: Final = 3
#: A GPU with calls no longer than `PROMPT_S` for `PROMPT_FOR_S` is read with the others again.
PROMPT_S: Final = 0.05
PROMPT_FOR_S: Final = 10.0
#: The shortest time between two GPUs that count as delaying the others, if none hangs. Where all calls are slow, as on
#: an overloaded machine, more processes would make it worse.
HELD_UP_PAUSE_S: Final = 2.0


class Pace:
    """The response times of GPUs. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._slow: Counter[str] = Counter()
        self._prompt_since: dict[int, float] = {}
        self._held_up = float("-inf")

    def slow(self, uuid: str, took_ns: int) -> bool:
        """Note the longest call to a GPU in a round. True once when it has become too slow."""
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

    def may_isolate(self, apart: int, gpus: int, now: float, *, hangs: bool) -> bool:
        """True if one more GPU, which delays the others, should be read apart: then `apart` of `gpus` are.

        At most half of the GPUs may be read apart: if more are slow, the GPUs are not the cause. `hangs`: a call to
        an earlier one hangs. Calls that are slow because of the machine return.
        """
        if 2 * apart > gpus or (now - self._held_up < HELD_UP_PAUSE_S and not hangs):
            return False
        self._held_up = now
        return True

    def prompt(self, now: float) -> list[int]:
        """The GPUs that have answered promptly for longer than `PROMPT_FOR_S`, by NVML index."""
        return [index for index, since in self._prompt_since.items() if now - since > PROMPT_FOR_S]

    def forget(self, index: int) -> None:
        """Restart the time for which this GPU has been prompt."""
        self._prompt_since.pop(index, None)
