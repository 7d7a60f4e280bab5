"""A page in a real browser: what a script finds in it."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

#: What counts the pixels of each colour of a canvas, and acts as people do.
_TOOLS = """
const canvas = place => document.getElementById("group-" + place);
const pixels = (place, y, height) => {
  const ratio = devicePixelRatio, it = canvas(place), found = {};
  const area = [GUTTER * ratio, y * ratio, it.width - GUTTER * ratio, height * ratio];
  const all = it.getContext("2d").getImageData(...area).data;
  for (let i = 0; i < all.length; i += 4) {
    const key = "#" + [...all.slice(i, i + 3)].map(n => n.toString(16).padStart(2, "0")).join("");
    if (all[i + 3] > 200) found[key] = (found[key] || 0) + 1;
  }
  return found;
};
const key = name => page.box.dispatchEvent(new KeyboardEvent("keydown", { key: name, cancelable: true }));
"""


def found_in(page: str, script: str, folder: Path, *options: str, tools: str = "", link: str = "") -> dict[str, Any]:
    """What `script` returns after the page has been drawn; the page has met no error and asked for nothing."""
    watch = "<script>window.failures = []; onerror = (what) => { failures.push(String(what)) };</script>"
    probe = (
        f"<script>{_TOOLS}{tools}page.draw(); const found = (() => {{ {script} }})();"
        "found.failures = failures; found.loads = performance.getEntriesByType('resource').map(each => each.name);"
        "const out = document.createElement('textarea'); out.id = 'found';"
        "out.textContent = JSON.stringify(found); document.body.append(out);</script>"
    )
    file = folder / "page.html"
    file.write_text(page.replace("<head>", f"<head>{watch}", 1).replace("</body>", f"{probe}</body>", 1), "utf-8")
    command = [shutil.which("chromium") or "chromium", "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]
    command += ["--disable-component-update", f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1400"]
    command += ["--virtual-time-budget=2000", "--dump-dom", *options, file.as_uri() + link]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    match = re.search(r'<textarea id="found">(.*?)</textarea>', done.stdout, re.DOTALL)
    assert match is not None, done.stdout[-500:]
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    assert found["failures"] == []
    assert found["loads"] == []
    return found
