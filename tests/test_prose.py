"""page.md: numbers come from the runs, digits are refused, code stays code."""

import pytest

from engine.errors import UserError
from engine.expressions import Measure, Namespace, Scope
from engine.publishing.prose import render_line, render_prose, slug

SCOPE = Scope({"a": Namespace("arm a", {"loss": Measure([1.5, 2.5])})})


def html(text: str) -> str:
    return render_prose(text, "page.md", SCOPE).html


def errors(text: str) -> str:
    with pytest.raises(UserError) as error:
        html(text)
    return str(error.value)


def test_an_expression_becomes_its_number():
    assert (
        html("It was {{ a.loss | loss }} nats.")
        == '<p>It was <span class="number">2.000</span>\N{NO-BREAK SPACE}nats.</p>\n'
    )


def test_an_expression_works_in_a_table_cell():
    assert '<td><span class="number">2.000</span></td>' in html("| x | y |\n|---|---|\n| {{ a.loss | loss }} | z |\n")


def test_braces_in_code_stay_text():
    assert "<code>{{ a.loss | loss }}</code>" in html("Write `{{ a.loss | loss }}`.")
    assert "{{ a.loss | loss }} {% if %} 42" in html("```\n{{ a.loss | loss }} {% if %} 42\n```\n")


def test_a_typed_digit_is_an_error_with_its_line():
    assert errors("One\ntwo\nand 3.14 nats.\n\n- item\n- item 7\n") == (
        "page.md:3: a number typed into prose\n  got:      and 3.14 nats.\n"
        "  next:     write an expression over the runs, or {{ … | plain }} if the number is typed on purpose\n"
        "page.md:6: a number typed into prose\n  got:      item 7\n"
        "  next:     write an expression over the runs, or {{ … | plain }} if the number is typed on purpose"
    )


@pytest.mark.parametrize(
    "text",
    ["`12`", "$12$", "[see 12](https://x.example/12)", "2026-11-30", "30 November 2026", "Young (1974)", "lesson 1.7", "lessons 1.2 and 1.3", "bf16", "GPT-2", "H100", "{{ 12 | plain }}", "```\n12\n```"],
)  # fmt: skip
def test_digits_may_stand_in_code_mathematics_links_dates_ids_and_names(text):
    html(text)


@pytest.mark.parametrize(
    "text",
    [
        "12",
        "1.7",
        "ended at 2.07",
        "in 1974 steps",
        "# 3 ways",
        "![loss 3](x.png)",
        "a 4x speed-up",
        "| a |\n|---|\n| 5 |",
    ],
)
def test_other_digits_may_not(text):
    assert "a number typed into prose" in errors(text)


def test_an_undefined_name_is_an_error_with_its_line():
    assert errors("x\n\n| a |\n|---|\n| {{ b.loss | loss }} |\n").startswith(
        "page.md:5: undefined name\n  got:      b\n"
    )


def test_dollars_are_money_and_mathematics_is_mathml():
    assert "<math" in html("With $T = \\sqrt{2CM}$ it is.")
    assert "<math" not in html("It costs $a and $b.")
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in html("$$x^2$$")


@pytest.mark.parametrize(
    "formula",
    [
        "\\text{a<b <script>alert(x)</script>}",
        "\\begin{aligned} a &= b \\end{aligned}",
        "\\text{<img src=x>}",
        "\\text{<mi\tonclick='alert(x)'>x</mi>}",
        "\\href{javascript:alert(x)}{x}",
    ],
)
def test_a_formula_cannot_bring_elements_of_its_own(formula):
    assert errors(f"${formula}$").startswith("page.md:1: a formula that cannot be read\n")


def test_a_comment_in_a_formula_brings_nothing_into_the_page():
    page = html("$\\text{<!--><script>alert(x)</script>-->}$ and $\\text{<!--neighbours-->}$")
    assert "<script" not in page and "<!--" not in page


def test_an_expression_without_its_end_is_told():
    assert errors("It was {{ a.loss | loss } nats.") == (
        "page.md:1: an expression without its end\n  got:      It was {{ a.loss | loss } nats.\n  expected: }}\n  next:     close it on the same line"
    )


def test_an_expression_in_an_alternative_text_is_written():
    assert 'alt="at 2.000"' in html("![at {{ a.loss | loss }}](x.png)")


def test_headings_avoid_the_ids_of_the_page_around():
    assert 'id="data-2"' in render_prose("## Data", "page.md", SCOPE, {"data"}).html


def test_raw_html_is_shown_and_not_run():
    assert "&lt;script&gt;" in html("<script>alert(x)</script>")


def test_headings_have_unique_ids_that_are_never_empty():
    assert [slug(text) for text in ("What, then?", "Что?", "!!!", "A {{ a.loss | loss }} b")] == [
        "what-then",
        "что",
        "section",
        "a-b",
    ]
    assert html("## A\n\n## A\n").count("id=") == 2
    assert 'id="a-2"' in html("## A\n\n## A\n")


def test_texts_of_the_spec_obey_the_same_rules():
    assert render_line("It was {{ a.loss | loss }} <b>.", "x", SCOPE) == "It was 2.000 <b>."
    with pytest.raises(UserError, match="a number typed into prose"):
        render_line("It was 2.0.", "x", SCOPE)


SAMPLES = [("small", 8, "To be\n", "To be\nor <not>"), ("small", 24, "To be\n", "To be\n20 times")]


def test_a_sample_block_is_filled_with_what_the_arm_wrote():
    page = render_prose("```sample small 24\nTo be\n```", "page.md", Scope({}, {}, {}), samples=SAMPLES).html
    assert page == "<pre><code>To be\n20 times</code></pre>\n"


def test_a_sample_that_no_run_drew_is_told():
    with pytest.raises(UserError) as error:
        render_prose("Text.\n\n```sample large 24\nTo be\n```", "page.md", Scope({}, {}, {}), samples=SAMPLES)
    assert str(error.value) == (
        "page.md:3: no run drew such a sample\n  got:      sample large 24\n  expected: sample small 8, sample small 24\n"
        "  next:     name an arm and step that did"
    )


def test_a_function_stands_apart_from_its_argument():
    assert '<mi>ln</mi><mspace width="0.17em" /><mn>2</mn>' in html(r"$\ln 2$")
    assert "mspace" not in html(r"$\ln(2)$")
