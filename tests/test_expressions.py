"""The language of prose numbers and claims."""

import pytest

from engine.errors import UserError
from engine.expressions import Expression, Measure, Namespace, Scope


def arm(what: str, losses: list[float]) -> Namespace:
    return Namespace(f"arm {what}", {"final": Namespace(f"the end of arm {what}", {"val_loss": Measure(losses)})})


def scope() -> Scope:
    seeds = {
        1: Scope({"a": arm("a", [2.0]), "b": arm("b", [1.0])}),
        2: Scope({"a": arm("a", [4.0]), "b": arm("b", [5.0])}),
    }
    return Scope({"a": arm("a", [2.0, 4.0]), "b": arm("b", [1.0, 5.0])}, {}, seeds)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a.final.val_loss | loss", "3.000"),
        ("a.final.val_loss.sd | loss", "1.414"),
        ("a.final.val_loss * 0.00003 | small", "0.00009"),
        ("b.final.val_loss - a.final.val_loss.max | loss", "−1.000"),
        ("a.final.val_loss * 1000 | count", "3,000"),
        ("a.final.val_loss / 12 | percent", "25.0\N{NO-BREAK SPACE}%"),
        ("a.final.val_loss / 100 | milliseconds", "30\N{NO-BREAK SPACE}ms"),
        ("sqrt(2 * a.final.val_loss + 3) | seconds", "3.0\N{NO-BREAK SPACE}s"),
        ("20 | plain", "20"),
    ],
)
def test_a_value_is_computed_and_written(text, written):
    assert Expression(text, "page.md:1").written(scope()) == written


def test_each_seed_is_about_every_single_seed_and_not_about_means():
    assert Expression("a.final.val_loss == b.final.val_loss", "x").value(scope()) is True
    value, evidence = Expression("each_seed(a.final.val_loss > b.final.val_loss)", "x").evidence(scope())
    assert value is False
    assert [(one.seed, one.left, one.sign, one.right, one.held) for one in evidence] == [
        (1, 2.0, ">", 1.0, True),
        (2, 4.0, ">", 5.0, False),
    ]


def test_count_seeds_tells_at_how_many_seeds_something_holds():
    assert Expression("count_seeds(a.final.val_loss > b.final.val_loss)", "x").value(scope()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c.final | loss", "page.md:4: undefined name\n  got:      c\n  expected: one of a, b\n  next:     mend the expression"),
        ("a.final.val_los | loss", "page.md:4: the end of arm a has no val_los\n  got:      a.final.val_los\n  expected: val_loss\n  next:     mend the expression"),
        ("a.final.val_loss | lose", "page.md:4: unknown format\n  got:      lose\n  expected: loss\n  next:     mend the expression"),
        ("3.2 | loss", "page.md:4: a typed number\n  got:      3.2 | loss\n  expected: an expression over the runs, or | plain if it is typed on purpose\n  next:     mend the expression"),
        ("abs(3.2) | loss", "page.md:4: a typed number\n  got:      abs(3.2) | loss\n  expected: an expression over the runs, or | plain if it is typed on purpose\n  next:     mend the expression"),
        ("exp(1000 * a.final.val_loss) | loss", "page.md:4: cannot be computed\n  got:      exp(1000 * a.final.val_loss) (math range error)\n  next:     mend the expression"),
        ("a.final. | loss", "page.md:4: not an expression\n  got:      a.final.\n  expected: invalid syntax\n  next:     mend the expression"),
        ("a.final | loss", "page.md:4: loss cannot write this value\n  got:      a.final = the end of arm a\n  next:     mend the expression"),
        ("a.final.val_loss / 0 | loss", "page.md:4: cannot be computed\n  got:      a.final.val_loss / 0 (float division by zero)\n  next:     mend the expression"),
        ("a.final.val_loss * 1e999 | loss", "page.md:4: not a finite number\n  got:      a.final.val_loss * 1e999 = inf\n  next:     mend the expression"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(text, message):
    with pytest.raises(UserError) as error:
        Expression(text, "page.md:4").written(scope())
    assert str(error.value) == message


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "a.__class__", "a.final.fields", "(lambda: 1)()", "[x for x in a]", "a.final.val_loss.sd.real", "open('x')", "f'{a}'", "a ** 99999", "1 if a else 2", "a['final']"],
)  # fmt: skip
def test_nothing_else_of_python_can_be_reached(text):
    with pytest.raises(UserError):
        Expression(text, "x").value(scope())
