"""lessons/explainers/NAME/ -> `Explainer`: a page without runs, whose numbers come from public sources.

explainer.toml   what it is called; its moving pictures; its figure with controls
facts.toml       every measured or published number, with its source
page.md          the prose; a block ```figure ID``` puts a picture of explainer.toml there
"""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from engine.errors import UserError, nearest, problem, shown
from engine.expressions import FORMATS, Namespace, Scope
from engine.lesson import Name
from engine.toml import Frozen, load

Slug = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]  # a part of an address


class Fact(Frozen):
    """One number that somebody else published."""

    name: str
    value: float | int
    unit: str
    source: str  # its title
    url: Annotated[str, Field(pattern=r"^https?://[^ ]+$")]
    note: str = ""  # how the value follows from what the source says


class Facts(Frozen):
    facts: dict[Name, Fact]


class Place(Frozen):
    """A box of a path figure. `at` is its column and row, from the upper left; halves are allowed."""

    label: str
    at: Annotated[list[float | int], Field(min_length=2, max_length=2)]


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
    values: Annotated[list[float | int], Field(min_length=2)]
    start: float | int  # the value that the still figure shows
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
    """What the figure says where its condition holds; the first one that holds is shown."""

    when: str  # an expression
    text: str


class Preset(Frozen):
    """A row of the table that stands below the figure, also without JavaScript."""

    label: str
    inputs: dict[Name, float | int]


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

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def page(self) -> Path:
        return self.folder / "page.md"

    @property
    def toml(self) -> str:
        return shown(self.folder / "explainer.toml")

    @property
    def scope(self) -> Scope:
        """What its expressions may name: facts.KEY."""
        return Scope({"facts": Namespace("facts.toml", {key: fact.value for key, fact in self.facts.items()})})


def load_explainers(lessons_folder: Path) -> list[Explainer]:
    """Every explainer, the newest first. UserError with all problems of all of them."""
    explainers, problems = [], []
    for page in sorted((lessons_folder / "explainers").glob("*/page.md")):
        try:
            explainers.append(_load_explainer(page.parent))
        except UserError as error:
            problems.extend(error.problems)
    if problems:
        raise UserError(*problems)
    return sorted(explainers, key=lambda one: (one.spec.date, one.name), reverse=True)


def _load_explainer(folder: Path) -> Explainer:
    spec = load(folder / "explainer.toml", ExplainerSpec)
    facts = load(folder / "facts.toml", Facts).facts if (folder / "facts.toml").exists() else {}
    explainer = Explainer(folder, spec, facts)
    if problems := [*_bad_names(explainer)]:
        raise UserError(*problems)
    return explainer


def _bad_names(explainer: Explainer) -> Iterator[str]:
    """Places that no figure has, inputs that no calculator has, ids used twice."""
    named = []
    for figure in explainer.spec.paths:
        ends = [end for route in figure.routes for move in route.moves for end in (move.start, move.end)]
        around = [name for frame in figure.frames for name in frame.around]
        named += [(figure.id, "no such place", name, figure.places) for name in [*ends, *around]]
    for figure in explainer.spec.calculators:
        for bar in figure.bars:
            if len(bar.values) not in (1, len(figure.ways)):
                yield problem(f"{explainer.toml} {figure.id}, {bar.label}", "wrong number of values", got=len(bar.values), expected=f"1, or one for each of {', '.join(figure.ways)}", next="mend the values")  # fmt: skip
        for preset in figure.presets:
            named += [(figure.id, "no such input", name, figure.inputs) for name in preset.inputs]
            named += [
                (f"{figure.id}, {preset.label}", "no value for an input", name, preset.inputs) for name in figure.inputs
            ]
    for where, what, name, known in named:
        if name not in known:
            yield problem(
                f"{explainer.toml} {where}", what, got=name, expected=nearest(name, list(known)), next="mend the name"
            )
    ids = [figure.id for figure in (*explainer.spec.paths, *explainer.spec.calculators)]
    for ident in dict.fromkeys(ident for ident in ids if ids.count(ident) > 1):
        yield problem(explainer.toml, "two figures have this id", got=ident, next="give one of them another id")
