"""Explainers and the glossary: pages without runs, whose numbers have a source and whose terms have one meaning."""

import re
from xml.etree import ElementTree

import pytest
from conftest import PROJECT

EXPLAINER = """\
title = "How bytes travel"
question = "Where do they go?"
summary = "From here to there at {{ facts.wire | count }} GB/s."
date = 2026-11-30

[[paths]]
id = "way"
title = "The way"
caption = "One arrow a trip."
places = { here = { label = "here", at = [0, 0] }, there = { label = "there", at = [1, 0] }, aside = { label = "aside", at = [1, 1] } }
frames = [{ label = "home", around = ["here"] }]

[[paths.routes]]
label = "straight"
moves = [{ start = "here", end = "there", text = "At {{ facts.wire | count }} GB/s." }]

[[calculators]]
id = "time"
title = "How long it takes"
caption = "Bytes over rate."
unit = "s"
ways = ["slow", "fast"]
steps = { slow = "size / (facts.wire * 1e9)", fast = "slow / 2" }
bars = [{ label = "sending", values = ["slow", "fast"] }]
says = [{ when = "slow > 1", text = "Long." }, { when = "1 == 1", text = "Short." }]
presets = [{ label = "a film", inputs = { size = 40e9 } }, { label = "a page", inputs = { size = 2e3 } }]

[calculators.inputs.size]
label = "Size"
values = [2e3, 40e9]
start = 40e9
format = "bytes"
"""

FACTS = """\
[facts.wire]
name = "A wire"
value = 10
unit = "GB/s"
source = "Its <maker>"
url = "https://maker.example/wire"
note = "Rated."
"""

PAGE = """\
## What travels

Bytes do, at {{ facts.wire | count }} GB/s, and a [gradient](glossary:gradient) is bytes.

```figure way
```

```figure time
```
"""

GLOSSARY = """\
[terms.gradient]
name = "gradient"
meaning = "Which way each <weight> should move."
"""


@pytest.fixture
def explained(content):
    folder = content.root / "lessons" / "explainers" / "bytes"
    folder.mkdir(parents=True)
    (folder / "explainer.toml").write_text(EXPLAINER)
    (folder / "facts.toml").write_text(FACTS)
    (folder / "page.md").write_text(PAGE)
    (content.root / "lessons" / "glossary.toml").write_text(GLOSSARY)
    return content


@pytest.fixture
def folder(explained):
    return explained.root / "lessons" / "explainers" / "bytes"


def page(content) -> str:
    assert content.build("--site-only") == 0
    return (content.site / "explainers" / "bytes" / "index.html").read_text()


def errors(content, capsys) -> str:
    assert content.build("--check") == 1
    return capsys.readouterr().err


def test_an_explainers_numbers_come_from_its_facts_and_each_has_its_source(explained):
    html = page(explained)
    assert '<span class="number">10</span> GB/s' in html and "<li>At 10 GB/s.</li>" in html
    assert '<a href="https://maker.example/wire">Its &lt;maker&gt;</a>' in html and "Rated." in html


def test_a_path_is_drawn_with_all_its_places_and_steps_without_javascript(explained):
    html = page(explained)
    drawing = re.search(r"<svg viewBox.*?</svg>", html, re.DOTALL)[0]
    assert [text for text in re.findall(r"<text[^>]*>(\w+)</text>", drawing)] == ["home", "here", "there", "aside", "1"]
    assert drawing.count('class="place unused"') == 1 and drawing.count('class="move"') == 1
    ElementTree.fromstring(drawing)


def test_a_calculator_is_computed_when_the_page_is_built(explained):
    html = page(explained)
    assert (
        "<b>4</b> s, slow" in html and "<b>2</b> s, fast" in html and '<p class="says" role="status">Long.</p>' in html
    )
    assert re.search(r"<b>a page</b>.*?<dd>0.0000002 → 0.0000001</dd>.*?Short\.", html, re.DOTALL)
    script = (explained.site / "explainers" / "bytes" / "figures.js").read_text()
    assert "v.slow = (v.size / (10 * 1000000000.0)); v.fast = (v.slow / 2);" in script


def test_the_home_page_the_sitemap_and_llms_txt_name_it(explained):
    page(explained)
    home = (explained.site / "index.html").read_text()
    assert '<a href="explainers/bytes/index.html">How bytes travel</a><p>From here to there at 10 GB/s.</p>' in home
    assert "<loc>https://train.example/explainers/bytes/</loc>" in (explained.site / "sitemap.xml").read_text()
    assert (
        "- [How bytes travel](https://train.example/explainers/bytes/): From here"
        in (explained.site / "llms.txt").read_text()
    )


def test_names_that_do_not_exist_are_told_together(explained, folder, capsys):
    explained.edit(folder / "explainer.toml", 'start = "here", end', 'start = "hree", end')
    explained.edit(folder / "explainer.toml", "{ size = 2e3 }", "{ sise = 2e3 }")
    where = "lessons/explainers/bytes/explainer.toml"
    assert errors(explained, capsys) == (
        f"{where} way: no such place\n  got:      hree\n  expected: here or there\n  next:     mend the name\n"
        f"{where} time: no such input\n  got:      sise\n  expected: size\n  next:     mend the name\n"
        f"{where} time, a page: no value for an input\n  got:      size\n  expected: sise\n  next:     mend the name\n"
    )


def test_a_figure_that_is_not_there_and_one_that_is_not_shown_are_errors(explained, folder, capsys):
    explained.edit(folder / "page.md", "```figure time", "```figure tiem")
    assert errors(explained, capsys) == (
        "lessons/explainers/bytes/page.md:8: no such figure\n  got:      tiem\n  expected: time\n  next:     name a figure of explainer.toml\n"
    )
    explained.edit(folder / "page.md", "```figure tiem\n```\n", "")
    assert errors(explained, capsys) == (
        "lessons/explainers/bytes/explainer.toml: a figure that page.md does not show\n  got:      time\n"
        "  next:     add a block ```figure time``` to page.md\n"
    )


def test_a_typed_number_and_an_unknown_fact_are_errors_with_their_line(explained, folder, capsys):
    explained.edit(folder / "page.md", "Bytes do, at", "All 8 do, at {{ facts.wier | count }} or")
    text = errors(explained, capsys)
    assert "lessons/explainers/bytes/page.md:3: a number typed into prose\n  got:      All 8 do, at" in text
    assert "lessons/explainers/bytes/page.md:3: facts.toml has no wier\n" in text and "expected: wire\n" in text


def test_a_mistake_in_its_toml_has_its_line(explained, folder, capsys):
    explained.edit(folder / "facts.toml", "unit =", "units =")
    assert errors(explained, capsys) == (
        "lessons/explainers/bytes/facts.toml:1 facts.wire.unit: missing key\n  expected: unit = …\n  next:     add the key\n"
        "lessons/explainers/bytes/facts.toml:4 facts.wire.units: unknown key\n  got:      units\n  expected: unit\n"
        "  next:     rename the key or take it out\n"
    )


def test_a_term_shows_its_meaning_and_has_an_address(explained):
    assert (
        '<a class="term" href="../../glossary/index.html#gradient" aria-describedby="meaning-1">gradient</a>'
        '<span class="meaning" role="tooltip" id="meaning-1">Which way each &lt;weight&gt; should move.</span>'
    ) in page(explained)
    glossary = (explained.site / "glossary" / "index.html").read_text()
    assert (
        '<h2 id="gradient"><a href="#gradient">gradient</a></h2>\n<p>Which way each &lt;weight&gt; should move.</p>'
        in glossary
    )
    assert 'Used in <a href="../explainers/bytes/index.html">How bytes travel</a>.' in glossary


def test_a_term_that_is_not_explained_is_an_error(explained, folder, capsys):
    explained.edit(folder / "page.md", "glossary:gradient", "glossary:gradiant")
    assert errors(explained, capsys) == (
        "lessons/explainers/bytes/page.md:3: the glossary has no such term\n  got:      gradiant\n  expected: gradient\n"
        "  next:     name one of these, or explain the term in glossary.toml\n"
    )


def test_a_term_that_no_page_uses_is_an_error(explained, folder, capsys):
    explained.edit(folder / "page.md", "[gradient](glossary:gradient)", "gradient")
    assert errors(explained, capsys) == (
        "lessons/glossary.toml terms.gradient: no page uses this term\n"
        "  next:     mark it where a page's prose uses it, [gradient](glossary:gradient), or take it out\n"
    )


def test_a_typed_number_in_a_meaning_is_an_error(explained, capsys):
    explained.edit(explained.root / "lessons" / "glossary.toml", "Which way", "In 16 bits, which way")
    assert errors(explained, capsys).startswith(
        "glossary.toml terms.gradient.meaning: a number typed into prose\n  got:      In 16 bits"
    )


def test_an_edit_of_the_glossary_reaches_the_pages_that_use_it(recorded):
    recorded.edit(recorded.page, "redid", "[redid](glossary:redo)")
    glossary = recorded.root / "lessons" / "glossary.toml"
    for meaning in ("Done once.", "Done twice."):
        glossary.write_text(f'[terms.redo]\nname = "redo"\nmeaning = "{meaning}"\n')
        assert recorded.build("--site-only") == 0
        assert f">{meaning}</span>" in (recorded.site / "lessons" / "1.7" / "index.html").read_text()


def test_every_fact_of_our_explainers_is_used():
    for folder in (PROJECT / "lessons" / "explainers").iterdir():
        facts = re.findall(r"^\[facts\.(\w+)\]", (folder / "facts.toml").read_text(), re.MULTILINE)
        text = (folder / "page.md").read_text() + (folder / "explainer.toml").read_text()
        assert [
            fact
            for fact in facts
            if f"facts.{fact} " not in text and f"facts.{fact})" not in text and f"facts.{fact} |" not in text
        ] == []
