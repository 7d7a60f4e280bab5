"""`python -m gpu.stage NAME DIRECTORY BACKEND SCALE PART...`: run parts of a stage, one after the other.

Prints `begin PART` and `end PART`. Leaves `DIRECTORY/PART.json` for each part, with its figures or why there are none,
and its files in `DIRECTORY/PART`.
"""

import importlib
import json
import math
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpu.parts import Kit, Part, Skip

STAGES: Final = ("sensors", "truth", "cost", "counters", "joint", "node")


def parts_of(stage: str) -> Mapping[str, Part]:
    """The parts of a stage, those of most worth first."""
    found: Mapping[str, Part] = importlib.import_module(f"gpu.{stage}").PARTS
    return found


def _run(part: Part, kit: Kit) -> dict[str, Any]:
    began = time.monotonic()
    try:
        found: dict[str, Any] = {"figures": part.measure(kit)}
    except Skip as skip:
        found = {"skipped": str(skip)}
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}", "where": traceback.format_exc()[-2000:]}
    return {"about": part.about, "seconds": round(time.monotonic() - began, 1), **found}


def finite(value: Any) -> Any:
    """The same without what JSON has no word for."""
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def main() -> None:
    stage, directory, backend, scale, *names = sys.argv[1:]
    parts = parts_of(stage)
    for name in names:
        out = Path(directory) / name
        out.mkdir(parents=True, exist_ok=True)
        print(f"begin {name}", flush=True)
        found = finite(_run(parts[name], Kit(backend, float(scale), out)))
        if not any(out.iterdir()):
            out.rmdir()
        draft = out.with_suffix(".draft")
        draft.write_text(json.dumps(found, indent=1, default=str))
        draft.rename(out.with_suffix(".json"))
        print(f"end {name}", flush=True)


if __name__ == "__main__":
    main()
