"""lessons/explainers/NAME/ -> `Explainer`: a page without runs, whose numbers come from public sources.

explainer.toml   what it is called; its moving pictures; its figure with controls
facts.toml       every measured or published number, with its source
page.md          the prose; a block ```figure ID``` puts a picture of explainer.toml there
"""

import datetime
import itertools
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from engine.errors import Collected, nearest, problem, shown
from engine.expressions import FORMATS, Namespace, Scope
from engine.lesson import Name
from engine.toml import Frozen, Key, dotted, line_of, load, load_with_lines

Number = Annotated[float | int, Field(allow_inf_nan=False)]
ALWAYS = "1 == 1"
RESERVED = {"main", "sources", "facts"}  # ids that the page has already, and the name that expressions have
SLUG = r"[a-z][a-z0-9-]*"  # a part of an address
Slug = Annotated[str, Field(pattern=f"^{SLUG}$")]


class Fact(Frozen):
    """One number that somebody else published."""

    name: str
    value: Number
    unit: str
    source: str  # its title
    url: Annotated[str, Field(pattern=r"^https?://[^ ]+$")]
    note: str = ""  # how the value follows from what the source says


class Facts(Frozen):
    facts: dict[Name, Fact]


class Place(Frozen):
    """A box of a path figure. `at` is its column and row, from the upper left. More than three columns are too narrow for
    their labels on a phone."""

    label: Annotated[str, Field(max_length=24)]
    at: Annotated[list[Annotated[Number, Field(ge=0)]], Field(min_length=2, max_length=2)]


class Frame(Frozen):
    """A border around places that belong together, e.g. one server."""

    label: str
    around: Annotated[list[Name], Field(min_length=1)]


class Move(Frozen):
    """One step of a route: bytes go from one place to another."""

    start: Name
    end: Name
    text: str


class Route(Frozen):
    label: str
    moves: Annotated[list[Move], Field(min_length=1)]


class Paths(Frozen):
    """A figure in which bytes travel, step by step: one drawing a route, all with the same places."""

    id: Slug
    title: str
    caption: str
    places: dict[Name, Place]
    frames: list[Frame] = []
    routes: Annotated[list[Route], Field(min_length=1)]


class Input(Frozen):
    """A control: the reader chooses one of the values."""

    label: str
    values: Annotated[list[Number], Field(min_length=2)]
    start: Number  # the value that the still figure shows
    format: str = "plain"

    @model_validator(mode="after")
    def _can_be_shown(self) -> "Input":
        if self.start not in self.values:
            raise ValueError(f"start must be one of the values, got {self.start}")
        if self.format not in FORMATS:
            raise ValueError(f"format must be {nearest(self.format, list(FORMATS))}")
        return self


class Bar(Frozen):
    """One quantity: one bar, or one for each of the calculator's `ways`."""

    label: str
    values: Annotated[list[str], Field(min_length=1)]  # expressions


class Saying(Frozen):
    """What the figure says where its condition holds. The first one that holds is shown, so the last one has none."""

    when: str = ALWAYS  # an expression
    text: str


class Preset(Frozen):
    """A row of the table that stands below the figure, also without JavaScript."""

    label: str
    inputs: dict[Name, Number]


class Calculator(Frozen):
    """A figure with controls. Its formulas are written once, in the language of expressions; the page's script gets them
    translated."""

    id: Slug
    title: str
    caption: str
    unit: str  # of the bars
    ways: Annotated[list[str], Field(min_length=1)]  # what the bars of one quantity compare, e.g. without and with
    inputs: dict[Name, Input]
    steps: dict[Name, str]  # intermediate results by name, in order: expressions over inputs, facts and earlier steps
    bars: Annotated[list[Bar], Field(min_length=1)]
    says: Annotated[list[Saying], Field(min_length=1)]
    presets: Annotated[list[Preset], Field(min_length=1)]


class ExplainerSpec(Frozen):
    title: str
    question: str
    summary: str  # one sentence for lists and links
    date: datetime.date
    paths: list[Paths] = []
    calculators: list[Calculator] = []


@dataclass(frozen=True)
class Explainer:
    """An explainer, validated. It lives at explainers/<name>/, the name of its folder."""

    folder: Path
    spec: ExplainerSpec
    facts: dict[str, Fact]
    lines: dict[Key, int]  # of explainer.toml

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def page(self) -> Path:
        return self.folder / "page.md"

    @property
    def scope(self) -> Scope:
        """What its expressions may name: facts.KEY."""
        return Scope({"facts": Namespace("facts.toml", {key: fact.value for key, fact in self.facts.items()})})

    def where(self, *key: str | int) -> str:
        """A place in explainer.toml, for messages."""
        parts = tuple(map(str, key))
        return f"{shown(self.folder / 'explainer.toml')}:{line_of(self.lines, parts)} {dotted(parts)}"


def load_explainers(lessons_folder: Path) -> list[Explainer]:
    """Every explainer, the newest first. UserError with all problems of all of them."""
    collected = Collected()
    folders = [folder for folder in sorted((lessons_folder / "explainers").glob("*")) if folder.is_dir()]
    found = [collected.get(lambda folder=folder: _load_explainer(folder), None) for folder in folders]
    collected.raise_all()
    return sorted(found, key=lambda one: (one.spec.date, one.name), reverse=True)


def _load_explainer(folder: Path) -> Explainer:
    collected, facts_toml = Collected(), folder / "facts.toml"
    spec, lines = collected.get(lambda: load_with_lines(folder / "explainer.toml", ExplainerSpec), (None, {}))
    facts = collected.get(lambda: load(facts_toml, Facts).facts, {}) if facts_toml.exists() else {}
    if not re.fullmatch(SLUG, folder.name):
        collected.problems.append(problem(shown(folder), "this name cannot be an address", expected="small letters, digits and hyphens", next="rename the folder"))  # fmt: skip
    if not (folder / "page.md").is_file():
        collected.problems.append(
            problem(shown(folder / "page.md"), "missing", next="write the explainer's prose there")
        )
    collected.raise_all()
    explainer = Explainer(folder, spec, facts, lines)
    collected.problems += [
        *_bad_paths(explainer),
        *_bad_calculators(explainer),
        *_bad_ids(explainer),
        *_unused_facts(explainer),
    ]
    collected.raise_all()
    return explainer


def _bad_paths(explainer: Explainer) -> Iterator[str]:
    for number, figure in enumerate(explainer.spec.paths):
        known = list(figure.places)
        named = [(("frames", at), name) for at, frame in enumerate(figure.frames) for name in frame.around]
        for at, route in enumerate(figure.routes):
            for move in route.moves:
                named += [(("routes", at), name) for name in (move.start, move.end)]
                if move.start == move.end:
                    yield problem(explainer.where("paths", number, "routes", at), "a step that goes nowhere", got=f"{move.start} to {move.end}", next="name another place")  # fmt: skip
        for key, name in dict.fromkeys(named):
            if name not in figure.places:
                yield problem(explainer.where("paths", number, *key), "no such place", got=name, expected=nearest(name, known), next="mend the name")  # fmt: skip
        for name, place in figure.places.items():
            if place.at[0] > 2:
                yield problem(explainer.where("paths", number, "places", name), "a fourth column", got=f"column {place.at[0]}", expected="columns 0, 1 and 2", next="move the place")  # fmt: skip
        for one, other in itertools.combinations(known, 2):
            if figure.places[one].at == figure.places[other].at:
                yield problem(explainer.where("paths", number, "places"), "two places in one spot", got=f"{one} and {other}", next="move one of them")  # fmt: skip


def _bad_calculators(explainer: Explainer) -> Iterator[str]:
    for number, figure in enumerate(explainer.spec.calculators):
        where = lambda *key, number=number: explainer.where("calculators", number, *key)
        for name in dict.fromkeys((*figure.inputs, *figure.steps)):
            if name in RESERVED or keyword.iskeyword(name) or (name in figure.inputs and name in figure.steps):
                yield problem(
                    where(), "this name cannot be used, or is used twice", got=name, next="rename the input or step"
                )
        for at, bar in enumerate(figure.bars):
            if len(bar.values) not in (1, len(figure.ways)):
                yield problem(where("bars", at), "wrong number of values", got=len(bar.values), expected=f"1, or one for each of {', '.join(figure.ways)}", next="mend the values")  # fmt: skip
        for at, saying in enumerate(figure.says):
            if (saying.when == ALWAYS) != (at == len(figure.says) - 1):
                yield problem(
                    where("says", at),
                    "the last saying holds always, and no other does",
                    next="give a `when` to every saying but the last",
                )
        for at, preset in enumerate(figure.presets):
            for name in [name for name in preset.inputs if name not in figure.inputs]:
                yield problem(where("presets", at), "no such input", got=name, expected=nearest(name, list(figure.inputs)), next="mend the name")  # fmt: skip
            for name in [name for name in figure.inputs if name not in preset.inputs]:
                yield problem(where("presets", at), "an input without a value", expected=f"{name} = …", next="add it")


def _bad_ids(explainer: Explainer) -> Iterator[str]:
    ids = [figure.id for figure in (*explainer.spec.paths, *explainer.spec.calculators)]
    for ident in dict.fromkeys(ident for ident in ids if ids.count(ident) > 1 or ident in RESERVED):
        yield problem(explainer.where("title"), "this id is used already", got=ident, next="give the figure another id")


def _unused_facts(explainer: Explainer) -> Iterator[str]:
    text = "".join(
        (explainer.folder / name).read_text(encoding="utf-8", errors="replace")
        for name in ("page.md", "explainer.toml")
    )
    used = set(re.findall(r"\bfacts\.(\w+)", text))
    for key in [key for key in explainer.facts if key not in used]:
        yield problem(f"{shown(explainer.folder / 'facts.toml')} facts.{key}", "nothing on the page uses this fact", next="use it, or take it out")  # fmt: skip
