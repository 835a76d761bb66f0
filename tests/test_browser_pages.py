"""Search, terms and explainers in a real browser."""

from itertools import islice, product
from pathlib import Path

import pytest
from chromium import needs_chromium, open_page
from conftest import PROJECT

from engine.explainer import load_explainers
from engine.expressions import Expression, Scope
from engine.lesson import load_site
from engine.publishing.explainers import explainer_page
from engine.publishing.site import assets

pytestmark = needs_chromium
LESSONS = PROJECT / "lessons"


@pytest.fixture(scope="module")
def gpudirect(tmp_path_factory) -> Path:
    """The page of our own explainer, on disk."""
    root = tmp_path_factory.mktemp("explainers")
    page = explainer_page(load_site(LESSONS), next(one for one in load_explainers(LESSONS) if one.name == "gpudirect"))
    for address, content in (page.files | assets()).items():
        path = root / address
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root / "explainers" / "gpudirect" / "index.html"


def test_search_is_reached_by_a_key_and_shows_where_and_the_sentence(browser, server):
    page, requests, problems = open_page(browser, f"{server}/lessons/1.7/index.html")
    assert not [url for url in requests if "pagefind" in url], "the index was loaded before anybody searched"
    page.keyboard.press("Control+k")
    page.wait_for_url("**/search/index.html")
    page.keyboard.type("redid")
    page.wait_for_selector(".results li")
    assert page.locator(".found").inner_text() == "1 page"
    assert page.locator(".results .small").inner_text() == "Phase 1 · Lesson 1.7"
    sentence = page.locator(".results .sentence").first
    assert sentence.locator("mark").first.inner_text() == "redid"
    assert sentence.inner_text().startswith("Saving rarely redid ")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/any/sub/path/lessons/1.7/")
    assert [url for url in requests if not url.startswith((server, "data:", "blob:"))] == [] and problems == []


def test_search_says_that_nothing_was_found_and_a_search_has_an_address(browser, server):
    page, *_ = open_page(browser, f"{server}/search/index.html?q=xylophone")
    page.wait_for_function("document.querySelector('.found').textContent === 'Nothing found for “xylophone”.'")


def test_search_from_disk_says_how_to_serve_the_site(browser, site):
    page, *_ = open_page(browser, f"file://{site}/search/index.html")
    page.locator("#words").fill("redid")
    page.wait_for_function("document.querySelector('.found').textContent.startsWith('A browser does not search pages that were opened from disk')")  # fmt: skip


def test_without_javascript_the_search_page_says_so(browser, server):
    page, *_ = open_page(browser, f"{server}/search/index.html", java_script_enabled=False)
    assert page.locator("noscript").inner_text().startswith("Search needs JavaScript.")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_meaning_is_shown_on_hover_and_on_focus_and_stays_on_the_screen(browser, gpudirect, scripts):
    page, *_ = open_page(
        browser, f"file://{gpudirect}", java_script_enabled=scripts, viewport={"width": 360, "height": 800}
    )
    term, meaning = page.locator(".term").first, page.locator(".meaning").first
    assert not meaning.is_visible()
    term.hover()
    meaning.wait_for(state="visible")
    box = meaning.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 360 and box["y"] >= term.bounding_box()["y"] + 10
    page.mouse.move(0, 0)
    meaning.wait_for(state="hidden")
    page.keyboard.press("Tab")
    while not term.evaluate("node => node === document.activeElement"):
        page.keyboard.press("Tab")
    meaning.wait_for(state="visible")
    if scripts:
        page.keyboard.press("Escape")
        meaning.wait_for(state="hidden")
        term.hover()
        meaning.wait_for(state="visible")
        meaning.hover()
        page.keyboard.press("Escape")
        meaning.wait_for(state="hidden")
        page.mouse.move(0, 0)
        term.hover()
        meaning.wait_for(state="visible")


def test_the_first_touch_of_a_term_shows_its_meaning_and_the_second_follows_it(browser, gpudirect):
    page, *_ = open_page(browser, f"file://{gpudirect}", has_touch=True, viewport={"width": 360, "height": 800})
    term = page.locator(".term").first
    term.tap()
    page.locator(".meaning").first.wait_for(state="visible")
    assert page.url.endswith("gpudirect/index.html")
    with page.expect_request("**/glossary/index.html*"):
        term.tap(no_wait_after=True)


def test_a_path_is_walked_step_by_step_and_can_be_paused(browser, gpudirect):
    page, _, problems = open_page(browser, f"file://{gpudirect}")
    figure = page.locator("#from-storage")
    figure.locator('[data-go="next"]').click()
    assert figure.locator(".at").inner_text() == "Step 1 of 4"
    assert [node.inner_text()[:15] for node in figure.locator("li.now").all()] == ["The drive write"] * 2
    figure.locator('[data-go="next"]').click()
    assert figure.locator(".route").nth(1).locator("li.done").count() == 1, "the shorter way is done and waits"
    assert figure.locator(".aloud").inner_text().startswith("Step 2 of 4. Through host memory: A core")
    figure.locator('[data-go="back"]').click()
    figure.locator('[data-go="play"]').click()
    page.wait_for_function("document.querySelector('#from-storage .at').textContent === 'Step 2 of 4'")
    figure.locator('[data-go="play"]').click()
    where = figure.locator(".packet").first.evaluate("node => getComputedStyle(node).transform")
    page.wait_for_timeout(2200)
    assert figure.locator(".at").inner_text() == "Step 2 of 4"
    assert figure.locator(".packet").first.evaluate("node => getComputedStyle(node).transform") == where
    figure.locator('[data-go="play"]').click()
    page.wait_for_function(
        "document.querySelector('#from-storage [data-go=play]').textContent === 'Play again'", timeout=10_000
    )
    assert problems == []


def test_with_reduced_motion_nothing_moves_and_the_steps_can_still_be_taken(browser, gpudirect):
    page, *_ = open_page(browser, f"file://{gpudirect}", reduced_motion="reduce")
    figure = page.locator("#between-servers")
    assert not figure.locator('[data-go="play"]').is_visible()
    figure.locator('[data-go="next"]').click()
    assert figure.locator(".packet").first.is_visible()
    assert page.evaluate("document.getAnimations().filter(one => one.effect.target.closest('.packet')).length") == 0


def test_without_javascript_an_explainer_is_whole(browser, gpudirect):
    page, *_ = open_page(browser, f"file://{gpudirect}", java_script_enabled=False)
    assert page.locator("#from-storage .badge").count() == 5 and not page.locator(".controls").first.is_visible()
    assert not page.locator(".inputs").is_visible()
    assert page.locator("#scale .bars dd").count() == 7 and page.locator(".presets > li").count() == 5


def test_the_controls_compute_what_the_build_computes(browser, gpudirect):
    page, *_ = open_page(browser, f"file://{gpudirect}")
    explainer = next(one for one in load_explainers(LESSONS) if one.name == "gpudirect")
    figure, facts = explainer.spec.calculators[0], explainer.scope.names
    steps = {name: Expression(text, name) for name, text in figure.steps.items()}
    bars = [Expression(value, bar.label) for bar in figure.bars for value in bar.values]
    whens = [Expression(saying.when, saying.text) for saying in figure.says]
    choices = [
        dict(zip(figure.inputs, values, strict=True))
        for values in product(*(one.values for one in figure.inputs.values()))
    ]
    for chosen in islice(choices, 0, None, 97):
        names = {**facts, **chosen}
        for name, step in steps.items():
            names[name] = step.value(Scope(names))
        here = [bar.value(Scope(names)) for bar in bars]
        says = next(at for at, when in enumerate(whens) if when.value(Scope(names)))
        there = page.evaluate(
            "v => { const one = window.calculators.scale; one.steps(v); return [one.bars.map(bar => bar(v)), one.says.findIndex(saying => saying[0](v))]; }",
            chosen,
        )
        assert there == [pytest.approx(here, rel=1e-12), says]


def test_a_control_moves_its_bars_by_keyboard(browser, gpudirect):
    page, *_ = open_page(browser, f"file://{gpudirect}")
    control = page.locator('[data-input="gpus"]')
    control.focus()
    control.press("Home")
    assert control.get_attribute("aria-valuetext") == "1"
    summing = page.locator("#scale .bars dd").nth(3)
    assert summing.inner_text().startswith("0 ms, through host memory")
    assert page.locator("#scale .says").inner_text().startswith("Do not bother.")
