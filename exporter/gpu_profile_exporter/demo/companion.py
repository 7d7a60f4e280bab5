"""Runs a module that ends with the demonstration: `python -m gpu_profile_exporter.demo.companion PID MODULE ARGUMENT…`.

`PID` is the demonstration's. If it is killed, the kernel sends SIGTERM to the module's process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PDEATHSIG: Final = 1


def main() -> int:
    """Become the module's process, unless the demonstration has ended already."""
    demonstration, *words = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(demonstration):
        # -P, as for readers: nothing is imported from the working directory.
        os.execv(sys.executable, [sys.executable, "-P", "-m", *words])  # noqa: S606 - Python itself
    return 0


if __name__ == "__main__":
    sys.exit(main())
