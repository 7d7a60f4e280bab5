"""Makes what `analysis/` holds: two recordings, and what the analyses of them print.

`PYTHONPATH=instrumentation:tests python tests/golden/make_analysis.py` writes the texts anew after a change of their
form that was meant; with `--recordings` the recordings too.
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from support.analysis import Run

from gpu_profile.analysis import Analysis, analyse, compare
from gpu_profile.analysis.comparison.text import render_comparison
from gpu_profile.analysis.views.text import render
from gpu_profile.recording import read_recording
from gpu_profile.regimes import Regime, Verdict

HERE = Path(__file__).parent / "analysis"
#: Rules and thresholds have tests of their own.
VERDICT = Verdict(Regime.BALANCED, 0.75, "counters", "a rule", 0.1, 9, 1.0, advice="leave it as it is")


def analysis(name: str) -> Analysis:
    found = analyse(read_recording(HERE / name))
    return replace(found, regions=tuple(replace(use, verdict=VERDICT) for use in found.regions))


def texts() -> dict[str, str]:
    a, b = analysis("a"), analysis("b")
    return {"analyze.txt": render(a) + "\n", "compare.txt": render_comparison(compare(a, b), ()) + "\n"}


if __name__ == "__main__":
    if sys.argv[1:] == ["--recordings"]:
        for name, run in (("a", Run()), ("b", Run(seed=2, dear=1.2))):
            shutil.rmtree(HERE / name, ignore_errors=True)
            run.write(HERE / name)
    for file, text in texts().items():
        (HERE / file).write_text(text, encoding="utf-8")
