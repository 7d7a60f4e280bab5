"""The alerts over a day of a simulated fleet: false alarms of healthy nodes, and the planted faults that are reported.

Prometheus' own promtool evaluates the committed rules every four minutes. The week of the comparisons is shortened to a
day; nothing else of the rules changes.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import yaml

from benchmarks.alert_faults import FAULTS, planted
from benchmarks.alert_fleet import DAY, GPUS, MINUTES, SimulatedNode, text
from benchmarks.rows import Row

_FILE: Final = Path(__file__).parents[2] / "grafana" / "alerts" / "gpu-profile.yaml"
_NODES: Final = 8
_MONTH_DAYS: Final = 30
#: Alarms per GPU-month that on-call people bear.
_REACH: Final = {"page": 0.1, "ticket": 1.0}
_STARTS: Final = (
    'sum by (alertname, severity, job, instance, hw_id, region) (sum_over_time((ALERTS{alertstate="firing"} '
    'unless ALERTS{alertstate="firing"} offset 4m)[1h:4m]))'
)
Alarm = dict[str, str]


def rows(nodes: int = _NODES) -> Iterator[Row]:
    """A row for each severity, one for the faults."""
    if shutil.which("promtool") is None:
        yield Row("alerts", "not measured: promtool is missing, install Debian's prometheus", ok=False)
        return
    severities = {
        rule["alert"]: rule["labels"]["severity"]
        for group in yaml.safe_load(_FILE.read_text())["groups"]
        for rule in group["rules"]
    }
    healthy = [SimulatedNode(number, seed=1) for number in range(nodes)]
    with ThreadPoolExecutor(2) as pool:
        halves = [pool.submit(alarms, part) for part in (healthy[::2], healthy[1::2])]
        false = Counter(dict.fromkeys(severities, 0))
        for half in halves:
            for alarm, count in half.result():
                false[alarm["alertname"]] += count
    months = nodes * GPUS / _MONTH_DAYS
    for severity in ("page", "ticket", "info"):
        yield _row(severity, {name: n for name, n in false.items() if severities[name] == severity}, months)
    yield _found()


def _row(severity: str, false: dict[str, int], months: float) -> Row:
    total, reach = sum(false.values()), _REACH.get(severity)
    each = ", ".join(f"{name} {n / months:.2f}" for name, n in false.items() if n) or "none"
    return Row(
        f"alerts, {severity}: false alarms per GPU-month",
        f"{total / months:.2f} of {len(false)} alerts ({each})",
        baseline=f"{total} in {months:.1f} GPU-months",
        reach="-" if reach is None else f"<={reach:g}",
        ok=reach is None or total / months <= reach,
    )


def _found() -> Row:
    fleet, expected = planted()
    reported = {
        (alarm["alertname"], alarm.get("job", ""), alarm.get("region") or alarm.get("hw_id") or alarm["instance"])
        for alarm, _ in alarms(fleet)
    }
    missed = sorted(f"{name} at {where}" for name, _, where in expected - reported)
    return Row(
        "alerts: planted faults reported",
        f"{len(expected) - len(missed)} of {len(expected)}" + f", missed: {', '.join(missed)}" * bool(missed),
        reach="all",
        ok=not missed and len(expected) == len(FAULTS),
    )


def alarms(fleet: Sequence[SimulatedNode]) -> list[tuple[Alarm, int]]:
    """The alarms of the second day with the number of times that each began."""
    given = [{"series": name, "values": text(values)} for node in fleet for name, values in node.series.items()]
    with tempfile.TemporaryDirectory() as directory:
        rules, test = Path(directory) / "rules.yaml", Path(directory) / "test.json"
        rules.write_text(_FILE.read_text().replace("offset 1w", "offset 1d"))
        # An hour at a time: promtool limits the samples of a query.
        checks = [{"expr": _STARTS, "eval_time": f"{end}m", "exp_samples": []} for end in range(DAY + 88, MINUTES, 60)]
        cases = {"interval": "1m", "input_series": given, "promql_expr_test": checks}
        test.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "4m", "tests": [cases]}))
        run = subprocess.run(["promtool", "test", "rules", test], capture_output=True, text=True, check=False)
    output = run.stdout + run.stderr
    if run.returncode and "got:" not in output:
        raise RuntimeError(f"promtool could not evaluate the rules: {output[-500:]}")
    found = re.findall(r"\{(alertname=[^}]*)\} ([\d.E+]+)", output)
    return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), int(float(count))) for labels, count in found]
