"""The audits of a built site, each with the figure that it must reach:

    npm ci --prefix tests/audits
    python -m tests.audits.audit site
    python -m tests.audits.audit site --only sizes browser

Exit code 1 if a page misses a figure; all of them are listed. Needs Debian's Chromium and Node.
"""

import argparse
import gzip
import http.server
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).parent / "node_modules"
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]
READ_KB, LIVE_KB = 80, 400  # a lesson without JavaScript; with every interactive part
SCORES = {"performance": 95, "accessibility": 100, "best-practices": 100, "seo": 100}
LAYOUT_SHIFT = 0.01


def sizes(site: Path) -> Iterator[str]:
    """What a reader downloads for a lesson, as a server sends it: gzip."""
    packed = lambda path: len(gzip.compress(path.read_bytes())) / 1000
    for page in lessons(site):
        read = packed(page) + packed(site / "assets" / "style.css")
        live = (
            read
            + packed(page.parent / "charts.js")
            + sum(packed(site / "assets" / name) for name in ("page.js", "vega.js"))
        )
        print(f"{page.relative_to(site)}: {read:.1f} kB to read, {live:.1f} kB with everything")
        if read > READ_KB or live > LIVE_KB:
            yield f"{page.relative_to(site)}: {read:.1f} and {live:.1f} kB, must be at most {READ_KB} and {LIVE_KB}"


def validity(site: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"  # a pipe would be cut where the program ends
        command = ["node", str(TOOLS / "html-validate" / "bin" / "html-validate.mjs"), "--config", str(Path(__file__).parent / "htmlvalidate.json")]  # fmt: skip
        done = subprocess.run([*command, "--formatter", f"json={report}", *map(str, pages(site))], capture_output=True, text=True, check=False)  # fmt: skip
        if not report.exists():
            yield f"html-validate did not run: {done.stderr[-500:]}"
            return
        results = json.loads(report.read_text())
    for result in results:
        for message in result["messages"]:
            yield f"{Path(result['filePath']).relative_to(site)}:{message['line']}: {message['message']} ({message['ruleId']})"
    print(f"HTML validity: {len(pages(site))} pages")


def browser(site: Path) -> Iterator[str]:
    """axe in light and dark with every chart live; nothing wider than a phone; no other host."""
    from playwright.sync_api import sync_playwright

    axe = (TOOLS / "axe-core" / "axe.min.js").read_text()
    home = re.search(r'<link rel="canonical" href="([^"]+?)/?">', (site / "index.html").read_text())[
        1
    ]  # 404.html names it

    def own(route: Any) -> None:
        route.fulfill(path=site / route.request.url.removeprefix(home).strip("/"))

    with served(site) as root, sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for page in pages(site):
            name = page.relative_to(site).as_posix()
            for scheme, width in (("light", 360), ("dark", 1280)):
                context = chromium.new_context(
                    color_scheme=scheme, viewport={"width": width, "height": 800}, bypass_csp=True
                )
                context.route(f"{home}/**", own)
                tab, strangers = context.new_page(), []
                tab.on("request", lambda request, strangers=strangers: strangers.append(request.url))
                tab.goto(f"{root}/{name}")
                tab.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true; })")
                for drawing in tab.locator("figure[data-live] .drawing:visible").all():
                    drawing.focus()
                tab.wait_for_function("[...document.querySelectorAll('figure[data-live] .drawing')].every(d => !d.clientWidth || d.classList.contains('interactive'))", timeout=60_000)  # fmt: skip
                yield from (
                    f"{name}: asks {url}" for url in strangers if not url.startswith((root, home, "data:", "blob:"))
                )
                if tab.evaluate("document.documentElement.scrollWidth") > width:
                    yield f"{name}: wider than {width} px"
                tab.evaluate(axe)
                for rule in tab.evaluate("axe.run()")["violations"]:
                    yield f"{name} ({scheme}): {rule['id']}: {rule['help']}: {rule['nodes'][0]['html'][:160]}"
                context.close()
        print(f"axe, width and hosts: {len(pages(site))} pages, light and dark")


def lighthouse(site: Path) -> Iterator[str]:
    """The phone preset over the home page, the search, the glossary, and every lesson and explainer. A page that misses a
    figure is measured three times, and the middle counts: the scores follow the machine's speed of the moment."""
    with served(site) as root:
        for page in [site / "index.html", *sorted(site.glob("*/index.html")), *sorted(site.glob("explainers/*/index.html")), *lessons(site)]:  # fmt: skip
            name = page.relative_to(site).as_posix()
            measured = [_measure(f"{root}/{name}")]
            if measured[0] is None or _short(measured[0]):
                measured += [_measure(f"{root}/{name}") for _ in range(2)]
            if None in measured:
                yield f"{name}: Lighthouse did not run"
                continue
            middle = sorted(measured, key=lambda one: one["performance"])[len(measured) // 2]
            print(f"{name}: {', '.join(f'{key} {value}' for key, value in middle.items())}")
            if _short(middle):
                yield f"{name}: {middle}, must be at least {SCORES}, with a layout shift of at most {LAYOUT_SHIFT}"


def _measure(address: str) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = ["node", str(TOOLS / "lighthouse" / "cli" / "index.js"), address, "--quiet", "--output=json", f"--output-path={report}", f"--chrome-flags=--headless {' '.join(FLAGS)}"]  # fmt: skip
        done = subprocess.run(command, env=os.environ | {"CHROME_PATH": CHROMIUM}, capture_output=True, text=True, check=False)  # fmt: skip
        if done.returncode:
            print(f"{address}: {done.stderr[-500:]}", file=sys.stderr)
            return None
        result = json.loads(report.read_text())
    scores = {key: round(100 * result["categories"][key]["score"]) for key in SCORES}
    failed = [ref["id"] for key in SCORES for ref in result["categories"][key]["auditRefs"] if result["audits"][ref["id"]]["score"] not in (1, None) and ref["weight"]]  # fmt: skip
    shift = round(result["audits"]["cumulative-layout-shift"]["numericValue"], 3)
    return scores | {"layout shift": shift, "look at": failed}


def _short(one: dict[str, Any]) -> bool:
    return one["layout shift"] > LAYOUT_SHIFT or any(one[key] < least for key, least in SCORES.items())


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def lessons(site: Path) -> list[Path]:
    return sorted(site.glob("lessons/*/index.html"))


class _Packed(http.server.SimpleHTTPRequestHandler):
    """Text goes out packed, as from the server that publishes the site."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.suffix not in (".html", ".css", ".js") or not path.is_file():
            return super().do_GET()
        body = gzip.compress(path.read_bytes())
        self.send_response(200)
        self.send_header("Content-Type", f"{self.guess_type(str(path))}; charset=utf-8")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(site: Path) -> Iterator[str]:
    handler = lambda *arguments: _Packed(*arguments, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


AUDITS = {audit.__name__: audit for audit in (sizes, validity, browser, lighthouse)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("--only", choices=AUDITS, nargs="+", default=list(AUDITS))
    options = parser.parse_args()
    missed = [line for name in options.only for line in AUDITS[name](options.site.resolve())]
    print("\n".join(missed), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
