"""A page in a real browser: what a script finds in it."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

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


class Browser:
    """A real browser that is driven through WebDriver, which a page's content security policy does not bind."""

    def __init__(self, session: str, driver: int) -> None:
        self._session = session
        #: The process that started the browser.
        self.driver = driver

    def __call__(self, script: str, *arguments: object) -> Any:
        """What a script in the page returns; of a promise, its value."""
        return self._send("/execute/sync", {"script": script, "args": list(arguments)})

    def open(self, url: str) -> None:
        self._send("/url", {"url": url})

    def resize(self, width: int, height: int) -> None:
        self._send("/window/rect", {"width": width, "height": height})

    def until(self, condition: str, seconds: float = 30.0) -> Any:
        """Wait in the page until an expression is true; its value."""
        wait = f"""
            const end = performance.now() + {seconds * 1e3};
            return new Promise((done, failed) => {{
              const look = () => {{
                const value = {condition};
                if (value) done(value); else if (performance.now() > end) done(null); else setTimeout(look, 50);
              }};
              look();
            }});
        """
        value = self(wait)
        assert value is not None, condition
        return value

    def logged(self) -> list[str]:
        """Errors on the console since the last call, violations of the policy among them."""
        rows: list[dict[str, str]] = self._send("/se/log", {"type": "browser"})
        return [row["message"] for row in rows if row["level"] == "SEVERE"]

    def _send(self, path: str, content: object, method: str = "POST") -> Any:
        return _call(self._session + path, content, method)


def _call(url: str, content: object, method: str = "POST") -> Any:
    data = None if method == "DELETE" else json.dumps(content).encode()
    request = Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urlopen(request, timeout=90) as answer:
            return json.load(answer)["value"]
    except HTTPError as error:
        raise AssertionError(json.load(error)["value"]["message"]) from error


@contextmanager
def browser(folder: Path, width: int = 1400, height: int = 1200) -> Iterator[Browser]:
    """A browser with a window of this size."""
    driver = subprocess.Popen(
        [shutil.which("chromedriver") or "chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert driver.stdout is not None
        ports = (re.search(r"started successfully on port (\d+)", line) for line in driver.stdout)
        port = next(match[1] for match in ports if match is not None)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
        options += ["--disable-background-networking", "--disable-component-update", f"--window-size={width},{height}"]
        options += [f"--user-data-dir={folder / 'profile'}", "--blink-settings=preferredColorScheme=1"]
        chrome = {"args": options, "binary": shutil.which("chromium") or "chromium"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
        url = f"http://127.0.0.1:{port}/session"
        session = f"{url}/{_call(url, {'capabilities': {'alwaysMatch': wanted}})['sessionId']}"
        try:
            yield Browser(session, driver.pid)
        finally:
            _call(session, None, "DELETE")
    finally:
        driver.terminate()
        driver.communicate(timeout=20)
