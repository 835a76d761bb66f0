"""Debian's Chromium for tests: fixtures to import, and a page that tells what it asked for and what went wrong."""

import functools
import http.server
import os
import shutil
import threading

import pytest

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
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")


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
    # Aborted: the page was left before its icon had come.
    page.on(
        "requestfailed", lambda request: problems.append(request.url) if request.failure != "net::ERR_ABORTED" else None
    )
    page.on("response", lambda response: problems.append(response.url) if response.status >= 400 else None)
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    return page, requests, problems
