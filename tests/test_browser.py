"""The page in a real browser: Debian's Chromium, with JavaScript and without, from a server and from disk."""

import os
import re
import shutil
from pathlib import Path

import pytest
from chromium import needs_chromium, open_page
from conftest import PROJECT, Content

import build
from engine.runs import Run

pytestmark = needs_chromium


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


NOISY_CHART = """
[[charts]]
kind = "curve"
metric = "train_loss"
title = "Training loss"
y_label = "training loss, nats per token"
caption = "It jumps."

[[claims]]
"""


LONG = """
A note^[that stands beside its line, with a [link](https://train.example) of its own] in a paragraph.

$$a + b + c + d + e + f + g + h + i + j + k + l + m + n + o + p + q + r + s + t + u + v + w + x + y + z = \\frac{A}{B}$$

| one long head of a column | another long head of a column | and a third long head of a column |
|---|---|---|
| cell | cell | cell |

```python
def a_function_with_a_long_name(with_a_long_argument, and_another_long_argument, and_a_third_one):
    return "one line that no phone can hold"
```

AVeryLongWordThatNoPhoneCanHoldBecauseItNeverEndsAndHasNoPlaceToBreakItAtAllNotEvenOne
"""


@pytest.fixture(scope="module")
def everything(trained_once, tmp_path_factory):
    """A page with every interactive part: a noisy chart, samples, a second profile, own runs."""
    content = Content(tmp_path_factory.mktemp("everything") / "content")
    shutil.copytree(trained_once.root, content.root)
    content.edit(content.toml, "\n[[claims]]\n", NOISY_CHART)
    profile = content.toml.read_text().split("[profiles.cpu]")[1].split("[arms.rare]")[0]
    content.edit(content.toml, "[arms.rare]", f"[profiles.big]{profile}\n[arms.rare]")
    content.edit(content.toml, "[base]", '[base]\nsample_prompts = ["O "]')
    content.page.write_text(content.page.read_text() + LONG)
    shutil.copytree(content.recorded, content.runs / "1.7" / "big")
    wrote = [{"step": step, "prompt": "O ", "text": f"written at {step}"} for step in (8, 16, 24)]
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "samples", wrote)
        patch.setattr("engine.publishing.choose.staleness", lambda *_: [])
        assert content.build("--lesson", "1.7") == 0
    os.chdir(before)
    return content.site


@pytest.fixture
def page(browser, everything):
    """The page with everything, from disk, on a desktop."""
    page, _, problems = open_page(browser, f"file://{everything}/lessons/1.7/index.html")
    yield page
    assert problems == []
    page.context.close()


def live(page, ident="chart-0"):
    """The figure of a chart, once it answers."""
    figure = page.locator(f"#{ident}")
    figure.locator(".drawing").hover()
    figure.locator(".drawing.interactive").wait_for(timeout=20_000)
    return figure


def values(figure) -> list[str]:
    return figure.locator(".value").all_inner_texts()


def drawn_lines(figure) -> list[str]:
    return [path.get_attribute("d") for path in figure.locator(".live svg path[stroke-width='2.5']").all()]


def test_a_sweep_of_the_pointer_shows_every_arms_value_at_each_of_40_points(page):
    figure = live(page)
    box = figure.locator(".live").bounding_box()
    shown = []
    for at in range(40):
        page.mouse.move(box["x"] + 60 + at * (box["width"] - 80) / 40, box["y"] + 20 + at * 6)
        shown.append((figure.locator(".at").inner_text(), *values(figure)))
    assert all(
        where.startswith("step: ") and all(re.fullmatch(r"\d\.\d+", value) for value in rest) for where, *rest in shown
    )
    assert {where for where, *_ in shown} == {"step: 0", "step: 8", "step: 16", "step: 24"}  # each evaluation
    page.mouse.move(5, 5)
    assert figure.locator(".at").inner_text() == "at the end"


def test_the_values_at_the_cursor_are_those_of_the_table(page):
    figure = live(page)
    figure.locator(".drawing").focus()
    page.keyboard.press("End")
    row = page.locator("#chart-0 + .below tbody tr").last.locator("td").all_text_contents()
    assert values(figure) == [f"{float(cell.split(' ')[0]):.4g}" for cell in row[1:]]


@pytest.mark.parametrize(
    ("axis", "title", "last"),
    [("tokens", "tokens trained on", "1,536"), ("bytes", "bytes of text trained on", "1,536")],
)
def test_x_can_be_tokens_or_bytes_of_text(page, axis, title, last):
    figure = live(page)
    figure.locator("[data-control=x]").select_option(axis)
    figure.locator(".live svg").get_by_text(title).wait_for()
    figure.locator(".drawing").focus()
    page.keyboard.press("End")
    assert figure.locator(".at").inner_text() == f"{title}: {last}"


def test_x_can_be_wall_clock(page):
    figure = live(page)
    figure.locator("[data-control=x]").select_option("wall_s")
    figure.locator(".live svg").get_by_text("seconds of process time").wait_for()
    figure.locator(".drawing").focus()
    page.keyboard.press("Home")
    assert re.fullmatch(r"seconds of process time: [\d.]+", figure.locator(".at").inner_text())


def test_y_can_be_logarithmic(page):
    figure = live(page)
    before = drawn_lines(figure)
    figure.locator("[data-control=y]").select_option("log")
    page.wait_for_function(
        "before => document.querySelector('#chart-0 .live svg path[stroke-width=\"2.5\"]').getAttribute('d') !== before",
        arg=before[0],
    )
    assert len(drawn_lines(figure)) == len(before)


def test_a_zero_on_a_logarithmic_axis_is_left_out_and_the_rest_stays_a_curve(page):
    figure = live(page, "chart-1")  # steps done: every line begins at 0
    linear = drawn_lines(figure)[0]
    figure.locator("[data-control=y]").select_option("log")
    page.wait_for_function(
        "before => document.querySelector('#chart-1 .live svg path[stroke-width=\"2.5\"]').getAttribute('d') !== before",
        arg=linear,
    )
    heights = {point.split(",")[1] for point in re.findall(r"[ML]([\d.,-]+)", drawn_lines(figure)[0])}
    assert len(heights) > 1 and "NaN" not in drawn_lines(figure)[0]


def test_a_note_stands_in_the_margin_of_a_desktop_and_in_the_text_of_a_phone(browser, everything):
    for width, beside in ((1400, True), (360, False)):
        page, _, _ = open_page(
            browser, f"file://{everything}/lessons/1.7/index.html", viewport={"width": width, "height": 800}
        )
        note, text = page.locator(".sidenote").bounding_box(), page.locator(".prose").bounding_box()
        assert (note["x"] > text["x"] + text["width"]) is beside and note["x"] + note["width"] <= width
        page.context.close()


def test_smoothing_changes_the_means_and_leaves_the_seeds_as_they_were(page):
    figure = live(page, "chart-2")
    seeds = "#chart-2 .live svg path[stroke-width='1'][stroke-opacity='0.45'], #chart-2 .live svg path[stroke-width='1'][opacity='0.45']"
    faint = [path.get_attribute("d") for path in page.locator(seeds).all()]
    weak = drawn_lines(figure)
    figure.locator("[data-control=smooth]").select_option("")
    page.wait_for_function(
        "before => document.querySelector('#chart-2 .live svg path[stroke-width=\"2.5\"]').getAttribute('d') !== before",
        arg=weak[0],
    )
    off = drawn_lines(figure)
    figure.locator("[data-control=smooth]").select_option("strong")
    page.wait_for_function(
        "before => document.querySelector('#chart-2 .live svg path[stroke-width=\"2.5\"]').getAttribute('d') !== before",
        arg=off[0],
    )
    assert len({weak[0], off[0], drawn_lines(figure)[0]}) == 3
    assert faint and [path.get_attribute("d") for path in page.locator(seeds).all()] == faint


def test_a_drag_zooms_and_reset_goes_back(page):
    figure = live(page)
    box = figure.locator(".live").bounding_box()
    whole = drawn_lines(figure)[0]
    page.mouse.move(box["x"] + 80, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 520, box["y"] + 120, steps=5)
    page.mouse.up()
    reset = figure.locator("[data-control=reset]:enabled")
    reset.wait_for()
    page.wait_for_function(
        "before => document.querySelector('#chart-0 .live svg path[stroke-width=\"2.5\"]').getAttribute('d') !== before",
        arg=whole,
    )
    reset.click()
    page.wait_for_function(
        "before => document.querySelector('#chart-0 .live svg path[stroke-width=\"2.5\"]').getAttribute('d') === before",
        arg=whole,
    )


def test_a_chart_library_that_does_not_come_leaves_the_static_chart_and_a_page_that_answers(browser, server):
    page, _, _ = open_page(browser, f"{server}/lessons/1.7/index.html")
    page.route("**/vega.js", lambda route: route.abort())
    page.locator("#chart-0 [data-control=closer]").click()
    page.wait_for_timeout(300)
    assert page.locator("#chart-0 .wide").is_visible() and page.evaluate("1 + 1") == 2
    page.unroute("**/vega.js")
    page.locator("#chart-0 [data-control=closer]").click()  # and the next touch tries again
    page.locator("#chart-0 [data-control=reset]:enabled").wait_for(timeout=20_000)


def test_at_the_end_the_values_are_those_of_the_chosen_smoothing(page):
    figure = live(page, "chart-2")
    page.mouse.move(5, 5)
    weak = values(figure)
    figure.locator("[data-control=smooth]").select_option("")
    page.wait_for_function("before => document.querySelector('#chart-2 .value').textContent !== before", arg=weak[0])
    off = values(figure)
    figure.locator(".drawing").focus()
    page.keyboard.press("End")
    assert values(figure) == off


def test_names_and_dots_stay_inside_a_zoomed_chart(page):
    figure = live(page, "chart-1")
    figure.locator(".drawing").focus()
    page.keyboard.press("End")
    for _ in range(2):
        page.keyboard.press("+")
        page.wait_for_timeout(300)
    frame = figure.locator(".live").bounding_box()
    for mark in figure.locator(".name, .dot").all():
        box = mark.bounding_box()
        assert frame["x"] <= box["x"] + box["width"] and box["x"] <= frame["x"] + frame["width"]
        assert frame["y"] - 20 <= box["y"] <= frame["y"] + frame["height"]


def test_an_arm_can_be_hidden(page):
    figure = live(page)
    assert len(drawn_lines(figure)) == 3
    figure.locator("input[data-arm=often]").uncheck()
    page.wait_for_function("document.querySelectorAll('#chart-0 .live svg path[stroke-width=\"2.5\"]').length === 2")
    assert "saves often" not in figure.locator(".names").inner_text()
    figure.locator(".drawing").hover()
    assert values(figure)[1] == "–"


def test_everything_works_by_keyboard_alone(browser, everything):
    page, _, problems = open_page(browser, f"file://{everything}/lessons/1.7/index.html")
    drawing = page.locator("#chart-0 .drawing")
    for _ in range(40):
        page.keyboard.press("Tab")
        if drawing.evaluate("node => node === document.activeElement"):
            break
    page.locator("#chart-0 .drawing.interactive").wait_for(timeout=20_000)
    page.wait_for_function(
        "(document.querySelector('#chart-0 .drawing').getAttribute('aria-valuetext') || '').startsWith('step: 24; ')"
    )
    page.keyboard.press("ArrowLeft")
    said = drawing.get_attribute("aria-valuetext")
    assert re.fullmatch(r"step: 16; saves rarely [\d.]+, saves often [\d.]+, never killed [\d.]+", said)
    assert drawing.get_attribute("role") == "slider" and drawing.get_attribute("aria-valuenow") == "2"
    page.keyboard.press("+")
    page.locator("#chart-0 [data-control=reset]:enabled").wait_for()
    page.keyboard.press("Escape")
    page.locator("#chart-0 [data-control=reset]:disabled").wait_for()
    assert problems == []


def test_a_touch_shows_the_values_there(browser, everything):
    page, _, problems = open_page(browser, f"file://{everything}/lessons/1.7/index.html", has_touch=True, is_mobile=True, viewport={"width": 360, "height": 800})  # fmt: skip
    figure = page.locator("#chart-0")
    figure.locator(".drawing").tap()
    figure.locator(".drawing.interactive").wait_for(timeout=20_000)
    figure.locator(".live").tap(position={"x": 300, "y": 100})
    assert figure.locator(".at").inner_text() == "step: 24"
    assert problems == []


def test_a_chart_in_a_closed_panel_draws_when_the_panel_is_opened(page):
    page.locator("summary", has_text="Profile big").click()
    figure = live(page, "big-chart-0")
    assert figure.locator(".live svg").bounding_box()["width"] > 400


def test_samples_are_chosen_by_step(page):
    assert page.locator("[data-step]:visible").count() == 1
    assert "written at 24" in page.locator("[data-step]:visible").inner_text()
    page.get_by_label("After which training step?").focus()
    page.keyboard.press("Home")
    assert "written at 8" in page.locator("[data-step]:visible").inner_text()
    assert page.get_by_label("After which training step?").get_attribute("aria-valuetext") == "step 8"


def test_without_javascript_every_sample_is_there_and_no_control(browser, everything):
    page, _, _ = open_page(browser, f"file://{everything}/lessons/1.7/index.html", java_script_enabled=False)
    assert page.locator("[data-step]:visible").count() == 3
    assert page.locator(".controls:visible, .arms:visible, .scheme:visible, .slider").count() == 0


def test_the_switch_of_light_and_dark_lasts(browser, server):
    page, _, _ = open_page(browser, f"{server}/index.html", color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.locator(".scheme").click()
    dark = page.evaluate(paper)
    assert dark != light and page.locator(".scheme").inner_text() == "Light"
    page.goto(f"{server}/lessons/1.7/index.html")
    assert page.evaluate(paper) == dark


def test_the_command_can_be_copied(browser, server):
    page, _, _ = open_page(
        browser, f"{server}/lessons/1.7/index.html", permissions=["clipboard-read", "clipboard-write"]
    )
    page.get_by_role("button", name="Copy").first.click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "python build.py --lesson 1.7 --run"


def test_paper_gets_the_whole_chart_in_light_colours_and_no_control(page, tmp_path):
    live(page)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("#chart-0 .wide").is_visible() and not page.locator("#chart-0 .live").is_visible()
    assert page.locator("button:visible, select:visible").count() == 0
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 30, 33)"
    assert page.pdf(path=tmp_path / "page.pdf")[:5] == b"%PDF-"


def test_nothing_moves_by_itself(page):
    moving = "[...document.querySelectorAll('*')].filter(n => { const s = getComputedStyle(n); return s.animationName !== 'none' || parseFloat(s.transitionDuration) > 0; }).length"
    live(page)
    assert page.evaluate(moving) == 0


@pytest.mark.parametrize("path", ["index.html", "404.html", "phases/1/index.html", "lessons/1.7/index.html"])
def test_no_page_is_wider_than_a_phone(browser, everything, path):
    page, _, _ = open_page(browser, f"file://{everything}/{path}", viewport={"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_charts_follow_the_colour_scheme(browser, site, scheme):
    page, _, _ = open_page(browser, f"file://{site}/lessons/1.7/index.html", color_scheme=scheme)
    color = "(node) => getComputedStyle(node).stroke"
    arm = page.locator('.drawing .wide svg path[stroke="var(--arm-0)"]').first.evaluate(color)
    assert arm == {"light": "rgb(184, 60, 8)", "dark": "rgb(255, 156, 102)"}[scheme]


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
        browser, f"file://{tmp_path}/site/lessons/1.7/index.html", viewport={"width": 900, "height": 1480}
    )
    picture = page.screenshot(path=tmp_path / "lesson.png")
    if os.environ.get("UPDATE_PICTURES"):
        (PROJECT / "tests" / "pictures" / "lesson.png").write_bytes(picture)
    assert page.locator("h1").inner_text() == "What a crash costs"
    assert problems == [] and len(picture) > 10_000
    assert (PROJECT / "tests" / "pictures" / "lesson.png").read_bytes()[:4] == b"\x89PNG"
