# SPDX-License-Identifier: Apache-2.0
"""`tileproof report` in a real browser: browser.py TOOL [PICTURES]. Headless Chromium by chromedriver, with the standard library alone.

Every page must load without a message on the console and without a request; sorting, filtering, switching, details, copying and the keyboard are
looked at in the document. With PICTURES, a folder, screenshots are left there: light, dark, phone, paper, a cell's details.
"""
import base64
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import inputs

ESCAPE, ENTER, DOWN, RIGHT = "\ue00c", "\ue007", "\ue015", "\ue014"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """The few commands of WebDriver that are needed."""

    def __init__(self, driver, chromium):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base, self.session = f"http://127.0.0.1:{port}", ""
        for _ in range(600):
            try:
                if self.ask("GET", "/status")["ready"]:
                    break
            except OSError:
                time.sleep(0.1)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,900", "--disable-dev-shm-usage"]
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"binary": chromium, "args": arguments},
                  "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}  # fmt: skip
        made = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{made['sessionId']}"

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=300) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"][:400]) from None

    def do(self, path, **body):
        return self.ask("POST", self.session + path, body)

    def run(self, script, *arguments):
        return self.do("/execute/sync", script=script, args=list(arguments))

    def devtools(self, command, **parameters):
        return self.do("/goog/cdp/execute", cmd=command, params=parameters)

    def click(self, selector):
        found = self.do("/element", using="css selector", value=selector)
        self.do(f"/element/{found[ELEMENT]}/click")

    def keys(self, *keys):
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.do("/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def open(self, path):
        """The page, whose whole load is looked at: nothing on the console, no request but the page itself."""
        self.do("/se/log", type="performance")
        self.do("/url", url=f"file://{path}")
        self.quiet()
        events = [json.loads(x["message"])["message"] for x in self.do("/se/log", type="performance")]
        asked = [x["params"]["request"]["url"] for x in events if x["method"] == "Network.requestWillBeSent"]
        assert asked and all(url in (f"file://{path}", "data:,") for url in asked), asked

    def quiet(self):
        said = self.do("/se/log", type="browser")
        assert not said, said

    def picture(self, path, **size):
        self.devtools("Emulation.setDeviceMetricsOverride", **{"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False, **size})
        path.write_bytes(base64.b64decode(self.ask("GET", self.session + "/screenshot")))

    def close(self):
        try:
            if self.session:
                self.ask("DELETE", self.session)
        finally:
            self.process.terminate()
            self.process.wait(30)


def texts(browser, table, column):
    return browser.run("return [...document.getElementById(arguments[0]).tBodies[0].rows].filter(r => !r.hidden).map(r => r.cells[arguments[1]].textContent)",
                       table, column)  # fmt: skip


def check_sorting(browser):
    times = "#rate-table thead th:nth-child(4) button"
    read = "return [...document.querySelectorAll('#rate-table tbody td:nth-child(4)')].map(x => Number(x.dataset.v))"
    browser.click(times)
    up = browser.run(read)
    assert up == sorted(up) and len(set(up)) > 2, up
    browser.click(times)
    assert browser.run(read) == sorted(up, reverse=True)
    assert browser.run("return document.querySelector('#rate-table th:nth-child(4)').getAttribute('aria-sort')") == "descending"
    browser.click("#rate-table thead th:nth-child(2) button")
    assert texts(browser, "rate-table", 1) == ["avx2"] * 4 + ["math"] * 4
    assert browser.run("return document.querySelectorAll('#rate-table [aria-sort]').length") == 1
    browser.click("#peer-table thead th:nth-child(8) button")  # a row without a ratio stays last, up and down
    last = [texts(browser, "peer-table", 4)[-1]]
    browser.click("#peer-table thead th:nth-child(8) button")
    assert last + texts(browser, "peer-table", 4)[-1:] == ["not run"] * 2, last


def check_filter(browser):
    before = texts(browser, "matrix", 0)
    browser.keys("/")
    assert browser.run("return document.activeElement.dataset.filter") == "matrix"
    browser.keys(*"WIDE 0-1")
    assert texts(browser, "matrix", 0) == ["wide.json"]
    assert browser.run("return document.querySelector('[data-shown=matrix]').textContent") == "1 of 3 rows"
    browser.run("const f = document.activeElement; f.value = ''; f.dispatchEvent(new Event('input'))")
    assert texts(browser, "matrix", 0) == before
    browser.run("const s = document.querySelector('[data-status=matrix]'); s.value = 'X'; s.dispatchEvent(new Event('change'))")
    assert texts(browser, "matrix", 0) == [inputs.HOSTILE]
    browser.run("const s = document.querySelector('[data-status=matrix]'); s.value = ''; s.dispatchEvent(new Event('change'))")


def check_cell(browser):
    browser.run("document.querySelector('.cell.refused').focus()")
    browser.keys(ENTER)
    inside = browser.run("return document.querySelector('dialog[open]').innerText")
    for text in ("UNSUPPORTED", "avx512: head_dim 640, need <= 576", "math: a fallback, need policy permit", "tileproof explain", "Some CPU", "ef" * 32, "seed"):
        assert text in inside, (text, inside)
    assert browser.run("return document.querySelectorAll('dialog li').length") == 2
    browser.keys(ESCAPE)
    assert not browser.run("return document.querySelector('dialog').open")
    assert browser.run("return document.activeElement.matches('.cell.refused')"), "the focus is back where it was"
    browser.click(".cell[data-count='2']")
    assert browser.run("return [...document.querySelectorAll('.tabs button')].map(x => x.textContent)") == ["Q main", "Q pages"]
    browser.click(".tabs button:nth-child(2)")
    assert "paged=16" in browser.run("return document.getElementById('what').textContent")
    assert browser.run("return document.querySelector('.bound div').style.width") == "30%"
    browser.devtools("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.click(".repro button")
    line = browser.run("return document.querySelector('.repro code').textContent")
    copied = browser.do("/execute/async", script="navigator.clipboard.readText().then(arguments[0], e => arguments[0](String(e)))", args=[])
    assert copied == line == "tileproof run 'decode b2 h4/2 q1 k1030 d64 f32 causal paged=16' --verify", (copied, line)
    assert browser.run("return document.querySelector('.repro button').textContent") == "copied"
    browser.click("dialog .close")


def check_hostile(browser):
    browser.click(".cell.bad")
    shown = browser.run("return [document.getElementById('what').textContent, document.querySelector('dialog li').textContent]")
    assert shown[0].startswith(inputs.HOSTILE) and inputs.HOSTILE.startswith(shown[1]) and "<img" in shown[1], shown
    assert browser.run("return document.querySelectorAll('img, main script, dialog script').length") == 0
    browser.keys(ESCAPE)


def check_heat(browser):
    visible = "return [...document.querySelectorAll('[data-map]:not([hidden]) .heat span')].filter(x => x.offsetParent).map(x => x.textContent)"
    time_shown = browser.run(visible)
    assert len(time_shown) == 4 and all("s" in x for x in time_shown), time_shown
    browser.click("[name=metric][value=scratch]")
    assert [x.split()[1] for x in browser.run(visible)] == ["KiB"] * 4
    browser.click("[name=metric][value=rate]")
    assert browser.run(visible) == ["59.0", "60.0", "67.0", "68.0"], browser.run(visible)
    browser.run("const s = document.querySelector('[data-maps]'); s.selectedIndex = s.length - 1; s.dispatchEvent(new Event('change', {bubbles: true}))")
    assert browser.run("return document.querySelector('[name=metric][value=rate]').disabled && document.getElementById('heat').dataset.metric") == "time"
    browser.run("const s = document.querySelector('[data-maps]'); s.selectedIndex = 0; s.dispatchEvent(new Event('change', {bubbles: true}))")
    browser.run("document.querySelector('.heat').focus()")
    browser.keys(RIGHT, DOWN, ENTER)
    assert "q1024 k1024 d128" in browser.run("return document.getElementById('what').textContent")
    browser.keys(ESCAPE)


def check_caches(browser, page):
    """Two caches of one model: a row each, and the loss beside the error."""
    browser.open(page)
    assert texts(browser, "matrix", 1) == ["plain", "i8/token"]
    browser.click("#matrix tbody tr:nth-child(2) .cell")
    inside = browser.run("return document.querySelector('dialog[open]').innerText")
    assert "30.0 %" in inside and "Quantising to i8/token lost up to 0.390 % of the greatest value of a row; the error is apart from it." in inside, inside
    assert "time\n1 ms" in inside and "time ns" not in inside, inside
    browser.keys(ESCAPE)
    print("passed: check_caches")


def check_phone(browser, page):
    """Nothing but a table or a chart, each in its place, is wider than a phone; the first status is in sight."""
    browser.devtools("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    browser.open(page)
    wide = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
    seen = browser.run("const at = document.querySelector('.cell').getBoundingClientRect(); return at.left + at.width / 2 < innerWidth")
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    assert wide[0] == wide[1] == 390 and seen, (wide, seen)
    print("passed: check_phone")


def check_paper(browser, page):
    """The head of a table stands on each of its pages."""
    if not shutil.which("pdftotext"):
        print("not run here: what is printed (pdftotext was not found; Debian: poppler-utils)")
        return
    browser.open(page)
    made = base64.b64decode(browser.devtools("Page.printToPDF", printBackground=True)["data"])
    pages = subprocess.run(["pdftotext", "-layout", "-", "-"], input=made, capture_output=True, check=True).stdout.decode().split("\f")
    with_models = [text for text in pages if "model-0" in text]
    assert len(with_models) > 3 and all("layers" in text for text in with_models), [len(pages), len(with_models)]
    print("passed: check_paper")


# WCAG 2.2, 1.4.3: every text that is shown, against what lies behind it. [ratio, needed, text, colours], those that fall short first.
CONTRAST = """
    const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d', {willReadFrequently: true});
    const known = new Map();
    const rgba = (colour, filter = 'none') => {  // of any colour that CSS can write
        const text = colour + filter;
        if (!known.has(text)) {
            canvas.clearRect(0, 0, 1, 1);
            canvas.filter = filter;
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
            const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
            known.set(text, [r, g, b, a / 255]);
        }
        return known.get(text);
    };
    const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
    const behind = (element) => {
        const layers = [];
        for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
        return layers.reverse().reduce((under, top) => over(top, under), rgba(getComputedStyle(document.documentElement).colorScheme === 'dark' ? '#121212' : '#fff'));
    };
    const light = (c) => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const found = [];
    for (const element of document.querySelectorAll('body *')) {
        if (![...element.childNodes].some(x => x.nodeType === 3 && x.textContent.trim())) continue;
        if (!element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true}) || element.matches(':disabled, :disabled *, style, script, title')) continue;
        const style = getComputedStyle(element), back = behind(element);
        const drawing = element.closest('svg'), drawn = drawing ? style.fill : style.color;
        const front = over(rgba(drawn, drawing ? getComputedStyle(drawing).filter : 'none'), back), [low, high] = [light(front), light(back)].sort((a, b) => a - b);
        const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        found.push([(high + 0.05) / (low + 0.05), large ? 3 : 4.5, element.textContent.trim().slice(0, 40), drawn + ' on ' + back.map(Math.round)]);
    }
    return found.sort((a, b) => a[0] / a[1] - b[0] / b[1]);
"""


def check_contrast(browser):
    lowest = []
    for scheme in ("light", "dark"):
        browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for opened in (False, True):
            if opened:
                browser.run("document.querySelector('.cell.bad').click()")
            found = browser.run(CONTRAST)
            low = [x for x in found if x[0] < x[1]]
            assert len(found) > 100 and not low, (scheme, len(found), low[:8])
            lowest.append(found[0][0])
            if opened:
                browser.keys(ESCAPE)
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    print("contrast: the lowest of all texts, light and dark, page and details:", *(f"{x:.2f}" for x in lowest))


def check_many(browser, page):
    """5,000 cells: what a click makes does not grow with them, and nothing waits for long. The times are told, not judged."""
    browser.open(page)
    count = browser.run("return document.querySelectorAll('.cell').length")
    assert count == 5000, count
    took = browser.run("""const filter = document.querySelector('[data-filter=matrix]'), times = [];
        const timed = (what) => { const from = performance.now(); what(); document.body.offsetHeight; times.push(Math.round(performance.now() - from)); };
        timed(() => { filter.value = 'model-042'; filter.dispatchEvent(new Event('input')); });
        timed(() => { filter.value = ''; filter.dispatchEvent(new Event('input')); });
        timed(() => document.querySelector('#matrix thead th:nth-child(3) button').click());
        timed(() => document.querySelector('.cell').click());
        return times""")  # fmt: skip
    assert browser.run("return document.querySelectorAll('dialog *').length") < 150
    browser.keys(ESCAPE)
    browser.run("const f = document.querySelector('[data-filter=matrix]'); f.value = 'model-042'; f.dispatchEvent(new Event('input'))")
    assert len(texts(browser, "matrix", 0)) == 10
    browser.quiet()
    print("5,000 cells: ms to filter, to show all, to sort, to open one:", *took)


def pictures(browser, page, folder):
    folder.mkdir(parents=True, exist_ok=True)
    browser.open(page)
    for name, scheme in (("light", "light"), ("dark", "dark")):
        browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.picture(folder / f"{name}.png", height=1000)
        browser.picture(folder / f"{name}-long.png", height=4200)
    browser.picture(folder / "phone-dark.png", width=390, height=1600, deviceScaleFactor=2, mobile=True)
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    browser.picture(folder / "phone.png", width=390, height=1600, deviceScaleFactor=2, mobile=True)
    browser.devtools("Emulation.setEmulatedMedia", media="print")
    browser.picture(folder / "paper.png", width=760, height=4000)
    browser.devtools("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "light"}])
    browser.picture(folder / "short.png", width=1160, height=760)
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    (folder / "paper.pdf").write_bytes(base64.b64decode(browser.devtools("Page.printToPDF", printBackground=True)["data"]))
    browser.click(".cell")
    browser.picture(folder / "cell.png")


def main():
    tool, chromium, driver = pathlib.Path(sys.argv[1]).resolve(), shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        print("not run here: chromium and chromedriver were not found (Debian: chromium, chromium-driver)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        inputs.write_all(folder)
        inputs.write_many(folder / "many.json", 5000)
        files = ["qualify.json", "rates.jsonl", "use.jsonl", "peers.jsonl", "goals.jsonl", "cliffs.jsonl", "against.jsonl", "replay.json", "trace.json",
                 "watch.json", "capacity.json"]  # fmt: skip
        for page, given in (("all.html", files), ("many.html", ["many.json"]), ("caches.html", ["good.json", "quantised.json"])):
            subprocess.run([tool, "report", *given, "-o", page], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        browser = Browser(driver, chromium)
        try:
            browser.open(folder / "all.html")
            for check in (check_sorting, check_filter, check_cell, check_hostile, check_heat, check_contrast):
                check(browser)
                browser.quiet()
                print("passed:", check.__name__)
            check_caches(browser, folder / "caches.html")
            check_phone(browser, folder / "caches.html")
            check_phone(browser, folder / "all.html")
            check_many(browser, folder / "many.html")
            check_paper(browser, folder / "many.html")
            browser.open(pathlib.Path(__file__).resolve().parents[2] / "docs/example-report.html")
            if len(sys.argv) > 2:
                pictures(browser, pathlib.Path(__file__).resolve().parents[2] / "docs/example-report.html", pathlib.Path(sys.argv[2]))
        finally:
            browser.close()


if __name__ == "__main__":
    main()
