"""Makes what this folder holds: what a report of kernels looks like as text and as JSON.

`PYTHONPATH=instrumentation:tests python tests/golden/kernels/make.py` writes the files anew after a change of their
form that was meant.
"""

import json
from pathlib import Path

from support.kernels import counted, on_cpu, report

from gpu_profile.kernels.render.document import document
from gpu_profile.kernels.render.table_file import kernels_csv
from gpu_profile.kernels.render.text import render

HERE = Path(__file__).parent


def texts() -> dict[str, str]:
    """By the name of the file."""
    found = report(counted=counted())
    return {
        "report.txt": render(found) + "\n",
        "region.txt": render(found, region="forward", top=3) + "\n",
        "report.json": json.dumps(document(found, top=2), indent=2, allow_nan=False) + "\n",
        "report.csv": kernels_csv(found),
        "cpu.txt": render(report(on_cpu())) + "\n",
    }


if __name__ == "__main__":
    for name, text in texts().items():
        (HERE / name).write_text(text, encoding="utf-8")
