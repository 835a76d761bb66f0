"""The page in a real browser: Debian's Chromium, with JavaScript and without, from a server and from disk."""

import functools
import http.server
import os
import shutil
import threading

import pytest
from conftest import PROJECT

import build

CHROMIUM = shutil.which("chromium")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
if CHROMIUM is None and os.environ.get("CI"):
    raise RuntimeError("CI has no Chromium: .ci/run installs it")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(trained_once):
    """The site of the tiny lesson's record."""
    assert trained_once.build("--site-only") == 0
    return trained_once.site


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server(site, tmp_path_factory):
    """The site under /any/sub/path/ of a server on loopback."""
    root = tmp_path_factory.mktemp("www")
    shutil.copytree(site, root / "any" / "sub" / "path")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=root)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/any/sub/path"
        server.shutdown()


def open_page(browser, address, **options):
    """(page, requests, problems): every address that was asked for, every console error and failed request."""
    context = browser.new_context(**options)
    page, requests, problems = context.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("requestfailed", lambda request: problems.append(request.url))
    page.on("response", lambda response: problems.append(response.url) if response.status >= 400 else None)
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    return page, requests, problems


def touch_chart(page) -> None:
    page.locator(".drawing").first.hover()
    page.wait_for_selector(".drawing.interactive", timeout=20_000)


@pytest.mark.parametrize("where", ["server", "disk"])
def test_a_chart_becomes_interactive_when_it_is_touched_and_nothing_leaves_the_site(browser, site, server, where):
    root = server if where == "server" else f"file://{site}"
    page, requests, problems = open_page(browser, f"{root}/lessons/1.7/index.html")
    assert not [url for url in requests if "vega" in url], "the chart library was loaded before anybody asked"
    touch_chart(page)
    assert page.locator(".drawing.interactive .live svg").first.is_visible()
    assert not page.locator(".drawing.interactive .wide").first.is_visible()
    assert [url for url in requests if not url.startswith((root, "data:"))] == []
    assert problems == []


def test_without_javascript_the_chart_the_mathematics_and_the_prose_are_there(browser, server):
    page, requests, problems = open_page(browser, f"{server}/lessons/1.7/index.html", java_script_enabled=False)
    chart = page.locator(".drawing .wide svg").first
    assert chart.is_visible() and chart.bounding_box()["width"] > 500
    assert page.locator("math").first.is_visible()
    assert page.get_by_role("heading", name="What happened").is_visible()
    assert problems == [] and len(requests) <= 3


def test_focus_by_keyboard_makes_the_chart_interactive_too(browser, server):
    page, _, problems = open_page(browser, f"{server}/lessons/1.7/index.html")
    page.locator(".drawing").first.focus()
    page.wait_for_selector(".drawing.interactive", timeout=20_000)
    assert problems == []


@pytest.mark.parametrize("path", ["index.html", "404.html", "lessons/1.7/index.html"])
def test_no_page_is_wider_than_a_phone(browser, site, path):
    page, _, _ = open_page(browser, f"file://{site}/{path}", viewport={"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_charts_follow_the_colour_scheme(browser, site, scheme):
    page, _, _ = open_page(browser, f"file://{site}/lessons/1.7/index.html", color_scheme=scheme)
    color = "(node) => getComputedStyle(node).stroke"
    arm = page.locator('.drawing .wide svg path[stroke="var(--arm-0)"]').first.evaluate(color)
    assert arm == {"light": "rgb(194, 65, 12)", "dark": "rgb(255, 156, 102)"}[scheme]


def test_the_readmes_picture_is_taken(browser, tmp_path):
    """Of the page of lesson 1.7 as it is recorded now. UPDATE_PICTURES=1 puts it into the repository."""
    assert (
        build.main(
            [
                "--site-only",
                "--lessons",
                str(PROJECT / "lessons"),
                "--runs",
                str(PROJECT / "runs"),
                "--out",
                str(tmp_path / "site"),
            ]
        )
        == 0
    )
    page, _, problems = open_page(
        browser, f"file://{tmp_path}/site/lessons/1.7/index.html", viewport={"width": 900, "height": 1100}
    )
    picture = page.screenshot(path=tmp_path / "lesson.png")
    if os.environ.get("UPDATE_PICTURES"):
        (PROJECT / "tests" / "pictures" / "lesson.png").write_bytes(picture)
    assert page.locator("h1").inner_text() == "What a crash costs"
    assert problems == [] and len(picture) > 10_000
    assert (PROJECT / "tests" / "pictures" / "lesson.png").read_bytes()[:4] == b"\x89PNG"
