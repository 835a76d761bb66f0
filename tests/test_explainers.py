"""Explainers and the glossary: pages without runs, whose numbers have a source and whose terms have one meaning."""

import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

from engine.errors import UserError
from engine.expressions import Expression, Namespace, Scope
from engine.lesson import load_lessons, load_site
from engine.publishing.stale import Contents

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
says = [{ when = "slow > 1", text = "Long." }, { text = "Short." }]
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
    assert (
        '<span class="number">10</span>\N{NO-BREAK SPACE}GB/s' in html
        and "<li>At 10\N{NO-BREAK SPACE}GB/s.</li>" in html
    )
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
        "<b>4</b> s, slow" in html
        and "<b>2</b> s, fast" in html
        and '<p class="says" role="status" data-pagefind-ignore>Long.</p>' in html
    )
    assert re.search(r"<b>a page</b>.*?<dd>0.0000002 → 0.0000001</dd>.*?Short\.", html, re.DOTALL)
    script = (explained.site / "explainers" / "bytes" / "figures.js").read_text()
    assert (
        "v.slow = (v.size / (10 * 1000000000.0)); v.fast = (v.slow / 2);" in script
        and '[2000.0,"2\\u00a0kB"]' in script
    )


def test_the_home_page_the_sitemap_and_llms_txt_name_it(explained):
    page(explained)
    home = (explained.site / "index.html").read_text()
    assert (
        '<a href="explainers/bytes/index.html">How bytes travel</a><p>From here to there at 10\N{NO-BREAK SPACE}GB/s.</p>'
        in home
    )
    assert "<loc>https://train.example/explainers/bytes/</loc>" in (explained.site / "sitemap.xml").read_text()
    assert (
        "- [How bytes travel](https://train.example/explainers/bytes/): From here"
        in (explained.site / "llms.txt").read_text()
    )


WHERE = "lessons/explainers/bytes/explainer.toml"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('start = "here", end', 'start = "hree", end', f"{WHERE}:13 paths.0.routes.0: no such place\n  got:      hree\n  expected: here or there\n  next:     mend the name\n"),
        ('end = "there", text', 'end = "here", text', f"{WHERE}:13 paths.0.routes.0: a step that goes nowhere\n  got:      here to here\n  next:     name another place\n"),
        ('"aside", at = [1, 1]', '"aside", at = [3, 1]', f"{WHERE}:10 paths.0.places.aside: a fourth column\n  got:      column 3\n  expected: columns 0, 1 and 2\n  next:     move the place\n"),
        ('"aside", at = [1, 1]', '"aside", at = [1, 0]', f"{WHERE}:10 paths.0.places: two places in one spot\n  got:      there and aside\n  next:     move one of them\n"),
        ("{ size = 2e3 }", "{ sise = 2e3 }", f"{WHERE}:26 calculators.0.presets.1: no such input\n  got:      sise\n  expected: size\n  next:     mend the name\n{WHERE}:26 calculators.0.presets.1: an input without a value\n  expected: size = …\n  next:     add it\n"),
        ('"slow / 2"', '"slow / (size - 2e3)"', f"{WHERE}:23 calculators.0.steps.fast: cannot be computed\n  got:      slow / (size - 2e3) (float division by zero)\n  next:     mend the expression\n"),
        ('"slow / 2"', '"slow - 1"', f"{WHERE}:24 calculators.0.bars.0: a bar needs a number that is not negative\n  got:      -0.9999998 where size = 2000\n  next:     mend the formula\n"),
        ('["slow", "fast"] }', '["slow", "slow > 1"] }', f"{WHERE}:24 calculators.0.bars.0: a bar needs a number that is not negative\n  got:      False where size = 2000\n  next:     mend the formula\n"),
        ('"slow / 2"', '"slow / 2 | loss"', f"{WHERE}:23 calculators.0.steps.fast: a formula has no format\n  got:      slow / 2 | loss\n  next:     take | loss out\n"),
        ('{ text = "Short." }', '{ when = "slow > 0", text = "Short." }', f"{WHERE}:25 calculators.0.says.1: the last saying holds always, and no other does\n  next:     give a `when` to every saying but the last\n"),
        ("steps = { slow", "steps = { size = \"1\", slow", f"{WHERE}:17 calculators.0: this name cannot be used, or is used twice\n  got:      size\n  next:     rename the input or step\n"),
        ('id = "time"', 'id = "sources"', f"{WHERE}:1 title: this id is used already\n  got:      sources\n  next:     give the figure another id\n"),
        ('label = "a film"', 'label = "9 films"', f"{WHERE}:26 calculators.0.presets.0: a number typed into prose\n  got:      9 films\n"),
        ("values = [2e3, 40e9]", "values = [2e3, inf]", f"{WHERE}:30 calculators.0.inputs.size.values.1: wrong value\n  got:      inf\n  expected: Input should be a finite number\n  next:     mend the value\n"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(explained, folder, capsys, old, new, message):
    explained.edit(folder / "explainer.toml", old, new)
    assert errors(explained, capsys).startswith(message)


def test_mistakes_of_all_files_come_together(explained, folder, capsys):
    explained.edit(folder / "explainer.toml", "facts.wire * 1e9", "facts.wier * 1e9")
    explained.edit(folder / "explainer.toml", "From here", "From 1 here")
    explained.edit(folder / "page.md", "Bytes do", "All 8 do")
    text = errors(explained, capsys)
    assert [line for line in text.splitlines() if not line.startswith("  ")] == [
        f"{WHERE}:23 calculators.0.steps.slow: facts.toml has no wier",
        f"{WHERE}:3 summary: a number typed into prose",
        "lessons/explainers/bytes/page.md:3: a number typed into prose",
    ]


def test_a_figure_that_is_not_there_and_one_that_is_not_shown_once_are_errors(explained, folder, capsys):
    explained.edit(folder / "page.md", "```figure time", "```figure tiem")
    page_md = "lessons/explainers/bytes/page.md"
    assert errors(explained, capsys) == (
        f"{page_md}:8: no such figure\n  got:      tiem\n  expected: time\n  next:     name a figure of explainer.toml\n"
    )
    explained.edit(folder / "page.md", "```figure tiem\n```\n", "")
    assert errors(explained, capsys) == (
        f"{page_md}: every figure is shown once\n  got:      time, 0 times\n  next:     keep one block ```figure time```\n"
    )


def test_a_folder_that_is_not_whole_or_no_address_is_an_error(explained, folder, capsys):
    (folder / "page.md").unlink()
    folder.rename(folder.with_name("All bytes"))
    assert errors(explained, capsys).startswith(
        "lessons/explainers/All bytes: this name cannot be an address\n  expected: small letters, digits and hyphens\n  next:     rename the folder\n"
        "lessons/explainers/All bytes/page.md: missing\n  next:     write the explainer's prose there\n"
    )


def test_a_fact_that_nothing_uses_is_an_error(explained, folder, capsys):
    (folder / "facts.toml").write_text(FACTS + FACTS.replace("facts.wire", "facts.rope"))
    assert errors(explained, capsys) == (
        "lessons/explainers/bytes/facts.toml facts.rope: nothing on the page uses this fact\n  next:     use it, or take it out\n"
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
        '<span class="meaning" role="tooltip" data-pagefind-ignore id="meaning-1">Which way each &lt;weight&gt; should move.</span>'
    ) in page(explained)
    glossary = (explained.site / "glossary" / "index.html").read_text()
    assert (
        '<h2 id="gradient"><a href="#gradient">gradient</a></h2>\n<p>Which way each &lt;weight&gt; should move.</p>'
        in glossary
    )
    assert 'Used in <a href="../explainers/bytes/index.html">How bytes travel</a>.' in glossary


def test_a_term_that_is_not_explained_is_an_error(explained, folder, capsys):
    explained.edit(folder / "page.md", "glossary:gradient", "glossary:gradiant")
    assert errors(explained, capsys).startswith(
        "lessons/explainers/bytes/page.md:3: the glossary has no such term\n  got:      gradiant\n  expected: gradient\n"
        "  next:     name one of these, or explain the term in glossary.toml\n"
    )


def test_a_term_that_no_page_uses_is_an_error(explained, folder, capsys):
    explained.edit(folder / "page.md", "[gradient](glossary:gradient)", "gradient")
    assert errors(explained, capsys) == (
        "lessons/glossary.toml:1 terms.gradient: no page uses this term\n"
        "  next:     mark it where a page's prose uses it, [gradient](glossary:gradient), or take it out\n"
    )


def test_a_term_may_be_marked_by_a_lesson_that_has_no_runs_yet(explained, folder):
    explained.edit(folder / "page.md", "[gradient](glossary:gradient)", "gradient")
    explained.edit(explained.page, "redid", "[redid](glossary:gradient)")
    assert explained.build("--check") == 0


def test_a_typed_number_in_a_meaning_is_an_error(explained, capsys):
    explained.edit(explained.root / "lessons" / "glossary.toml", "Which way", "In 16 bits, which way")
    assert errors(explained, capsys).startswith(
        "lessons/glossary.toml:1 terms.gradient: a number typed into prose\n  got:      In 16 bits"
    )


def test_a_marked_word_is_prose_and_may_hold_no_typed_number(explained, folder, capsys):
    explained.edit(folder / "page.md", "[gradient](glossary", "[99 gradients](glossary")
    assert "page.md:3: a number typed into prose\n  got:      99" in errors(explained, capsys)


def test_an_edited_term_makes_only_the_lessons_stale_that_mark_it(recorded):
    recorded.copy_lesson("1.9")
    recorded.edit(recorded.page, "redid", "[redid](glossary:redo)")
    glossary = recorded.root / "lessons" / "glossary.toml"
    folders = []
    for meaning in ("Done once.", "Done twice."):
        glossary.write_text(f'[terms.redo]\nname = "redo"\nmeaning = "{meaning}"\n')
        assert recorded.build("--site-only") == 0
        assert f">{meaning}</span>" in (recorded.site / "lessons" / "1.7" / "index.html").read_text()
        contents = Contents(recorded.root / "lessons", recorded.runs)
        lessons = load_lessons(recorded.root / "lessons")
        folders.append(
            [contents.lesson_folder(load_site(recorded.root / "lessons"), lesson, False) for lesson in lessons]
        )
    (seven, nine), (seven_after, nine_after) = folders
    assert seven != seven_after and nine == nine_after


@pytest.mark.parametrize(
    "text",
    ["7 * (size and 5)", "((size > 1) == 1) * 3", "1 * (size > 1 or size < 0)", "max(size, ln(2)) / facts.wire", "-size * (not size)"],
)  # fmt: skip
def test_a_formula_means_the_same_in_javascript(text):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    expression, facts = Expression(text, "here"), {"facts": Namespace("facts", {"wire": 10})}
    for size in (0, 1, 7):
        program = f"const v = {{ size: {size} }}; console.log(Number({expression.javascript(Scope(facts), {'size'})}))"
        there = float(subprocess.run([node, "-e", program], capture_output=True, text=True, check=True).stdout)
        assert there == pytest.approx(float(expression.value(Scope({**facts, "size": size}))), rel=1e-12)


def test_what_is_no_number_cannot_become_javascript():
    for text in ("facts.word", "1e400", "each_seed(1 > 0)"):
        with pytest.raises(UserError):
            Expression(text, "here").javascript(Scope({"facts": Namespace("facts", {"word": "a"})}), set())


def test_the_index_of_the_search_does_not_depend_on_where_the_build_was_started(explained, monkeypatch):
    before = page(explained) and {path.name for path in (explained.site / "pagefind").rglob("*")}
    (explained.root / "pagefind.toml").write_text('root_selector = "h1"\n')
    monkeypatch.setenv("PAGEFIND_ROOT_SELECTOR", "h1")
    shutil.rmtree(explained.site)
    page(explained)
    assert {path.name for path in (explained.site / "pagefind").rglob("*")} == before
