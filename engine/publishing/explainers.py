"""An explainer -> its page: figures whose bytes travel, figures with controls, and where every number comes from."""

import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import Collected, UserError, problem, shown
from engine.explainer import RESERVED, Calculator, Explainer, Paths, Place, Route
from engine.expressions import FORMATS, Expression, Scope, rough
from engine.lesson import Site
from engine.publishing.lists import json_for_script, templates
from engine.publishing.prose import linked_files, read_prose, render_line, render_prose

# Of a path's drawing, in its own units; 320 of them are a phone's width.
WIDTH, CELL_HEIGHT, BOX_WIDTH, BOX_HEIGHT, LETTERS = 320, 92, 94, 42, 13
LINE_HEIGHT, ARROW = 15, 9
Fill = Callable[..., str]  # a text of explainer.toml and its key -> the text with its numbers


@dataclass(frozen=True)
class ExplainerPage:
    """An explainer's page, and what lists say of it."""

    address: str  # e.g. explainers/gpudirect/
    texts: dict[str, str]  # title, question, summary
    source: Path
    files: dict[str, bytes]  # address below the site's root -> content
    links: list[tuple[str, int]]  # of the prose: (target, line of page.md)


def explainer_page(site: Site, explainer: Explainer) -> ExplainerPage:
    """UserError with every problem of its texts, formulas and prose."""
    spec, collected = explainer.spec, Collected()
    fill = lambda text, *key: collected.get(lambda: render_line(text, explainer.where(*key), explainer.scope), "")
    for key, text in _plain_texts(explainer):
        fill(text, *key)
    figures, scripts = _figures(explainer, collected, fill)
    texts = {key: fill(getattr(spec, key), key) for key in ("title", "question", "summary")}
    prose = collected.get(
        lambda: render_prose(
            read_prose(explainer.page), shown(explainer.page), explainer.scope, {*RESERVED, *figures}, (), site.glossary, "../../", figures
        ),
        None,
    )  # fmt: skip
    for ident in figures if prose else ():
        if (times := len(re.findall(rf'<figure class="\w+" id="{ident}"', prose.html))) != 1:
            collected.problems.append(problem(shown(explainer.page), "every figure is shown once", got=f"{ident}, {times} times", next=f"keep one block ```figure {ident}```"))  # fmt: skip
    collected.raise_all()
    address = f"explainers/{explainer.name}/"
    html = templates().get_template("explainer.html").render(
        site=site, root="../../", explainer=explainer, texts=texts, prose=prose.html, address=address
    )  # fmt: skip
    files = linked_files(explainer.folder, prose.links) | {"index.html": html.encode()}
    if scripts:
        body = ",\n".join(f"{json_for_script(ident)}: {script}" for ident, script in scripts.items())
        files["figures.js"] = f"window.calculators = {{{body}}};\n".encode()
    return ExplainerPage(
        address, texts, explainer.page, {address + name: content for name, content in files.items()}, prose.links
    )


def _figures(explainer: Explainer, collected: Collected, fill: Fill) -> tuple[dict[str, str], dict[str, str]]:
    """HTML of every figure, and the script of every calculator, by id."""
    spec, macros = explainer.spec, templates().get_template("explainer_figures.html").module
    figures = {
        one.id: str(macros.paths(one, _routes(number, one, fill), fill(one.caption, "paths", number, "caption")))
        for number, one in enumerate(spec.paths)
    }
    scripts = {}
    for number, one in enumerate(spec.calculators):
        made = collected.get(lambda number=number, one=one: _Calculated(explainer, number, one), None)
        if made:
            caption = fill(one.caption, "calculators", number, "caption")
            figures[one.id] = str(macros.calculator(one, made, caption, FORMATS, rough))
            scripts[one.id] = collected.get(made.script, "")
        else:
            figures[one.id] = f'<figure class="calculator" id="{one.id}">'  # the prose has its own problems to tell
    return figures, scripts


def _plain_texts(explainer: Explainer) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Texts that are shown as they stand: they obey the rule for digits too."""
    for number, path in enumerate(explainer.spec.paths):
        yield ("paths", number, "title"), path.title
        yield from ((("paths", number, "places", name), place.label) for name, place in path.places.items())
        yield from ((("paths", number, "frames", at), frame.label) for at, frame in enumerate(path.frames))
        yield from ((("paths", number, "routes", at), route.label) for at, route in enumerate(path.routes))
    for number, one in enumerate(explainer.spec.calculators):
        yield ("calculators", number, "title"), one.title
        yield ("calculators", number, "ways"), " ".join([one.unit, *one.ways])
        yield from ((("calculators", number, "inputs", name), control.label) for name, control in one.inputs.items())
        yield from ((("calculators", number, "bars", at), bar.label) for at, bar in enumerate(one.bars))
        yield from ((("calculators", number, "presets", at), preset.label) for at, preset in enumerate(one.presets))


def _routes(number: int, figure: Paths, fill: Fill) -> list[dict[str, Any]]:
    """Each route with the coordinates of its drawing. Places that a route does not touch are drawn too, faintly."""
    columns = 1 + max(place.at[0] for place in figure.places.values())
    middles = {
        name: (WIDTH * (place.at[0] + 0.5) / columns, CELL_HEIGHT * place.at[1])
        for name, place in figure.places.items()
    }
    frames = [_frame(frame.label, [middles[name] for name in frame.around]) for frame in figure.frames]
    tops = [y - BOX_HEIGHT / 2 for _, y in middles.values()] + [frame["y"] for frame in frames]
    bottoms = [y + BOX_HEIGHT / 2 for _, y in middles.values()] + [frame["y"] + frame["height"] for frame in frames]
    return [
        {
            "label": route.label, "view": f"0 {min(tops) - 2:g} {WIDTH} {max(bottoms) - min(tops) + 4:g}", "frames": frames,
            "boxes": [_box(name, place, middles[name], route) for name, place in figure.places.items()],
            "moves": [
                _arrow(middles[move.start], middles[move.end], _earlier(route, step)) | {"text": fill(move.text, "paths", number, "routes", at)}
                for step, move in enumerate(route.moves)
            ],
        }
        for at, route in enumerate(figure.routes)
    ]  # fmt: skip


def _earlier(route: Route, step: int) -> int:
    """How many steps before this one went between the same two places: their numbers must not hide each other."""
    ends = {route.moves[step].start, route.moves[step].end}
    return sum({move.start, move.end} == ends for move in route.moves[:step])


def _box(name: str, place: Place, middle: tuple[float, float], route: Route) -> dict[str, Any]:
    lines = textwrap.wrap(place.label, LETTERS)
    top = middle[1] - LINE_HEIGHT * (len(lines) - 1) / 2
    return {
        "x": round(middle[0] - BOX_WIDTH / 2, 1), "y": round(middle[1] - BOX_HEIGHT / 2, 1), "width": BOX_WIDTH, "height": BOX_HEIGHT,
        "lines": [(round(middle[0], 1), round(top + LINE_HEIGHT * at, 1), text) for at, text in enumerate(lines)],
        "used": any(name in (move.start, move.end) for move in route.moves),
    }  # fmt: skip


def _frame(label: str, middles: list[tuple[float, float]]) -> dict[str, Any]:
    xs, ys = zip(*middles, strict=True)
    left, top = min(xs) - BOX_WIDTH / 2 - 6, min(ys) - BOX_HEIGHT / 2 - 22
    width, height = max(xs) + BOX_WIDTH / 2 + 6 - left, max(ys) + BOX_HEIGHT / 2 + 8 - top
    return {
        "label": label,
        "x": round(left, 1),
        "y": round(top, 1),
        "width": round(width, 1),
        "height": round(height, 1),
    }


def _arrow(start: tuple[float, float], end: tuple[float, float], earlier: int) -> dict[str, Any]:
    """A line from box to box with its head, and the middle, where its number stands."""
    (x1, y1), (x2, y2) = start, end
    dx, dy = x2 - x1, y2 - y1
    # How far along the line its box ends: where the first of the two sides is met.
    part = min(BOX_WIDTH / 2 / abs(dx) if dx else 1, BOX_HEIGHT / 2 / abs(dy) if dy else 1)
    x1, y1, x2, y2 = x1 + dx * part, y1 + dy * part, x2 - dx * part, y2 - dy * part
    length = (dx * dx + dy * dy) ** 0.5
    ux, uy = dx / length, dy / length
    head = [
        (x2, y2),
        (x2 - ARROW * ux - 5 * uy, y2 - ARROW * uy + 5 * ux),
        (x2 - ARROW * ux + 5 * uy, y2 - ARROW * uy - 5 * ux),
    ]
    return {
        "x1": round(x1, 1), "y1": round(y1, 1), "x2": round(x2 - ARROW * ux, 1), "y2": round(y2 - ARROW * uy, 1),
        "head": " ".join(f"{x:.1f},{y:.1f}" for x, y in head), "x": round((x1 + x2) / 2 + 22 * earlier * abs(uy), 1), "y": round((y1 + y2) / 2 - 22 * earlier * abs(ux), 1),
        # Where what travels sets out and arrives: outside the boxes, so that it hides no name.
        "from": f"{x1 + ARROW * ux:.1f},{y1 + ARROW * uy:.1f}", "to": f"{x2 - ARROW * ux:.1f},{y2 - ARROW * uy:.1f}",
    }  # fmt: skip


class _Calculated:
    """A calculator, evaluated: for its still figure, its examples, and as a script with the same formulas.

    UserError with the problems of all formulas, or of what they give at the controls' ends and at every single value."""

    def __init__(self, explainer: Explainer, number: int, figure: Calculator) -> None:
        self._figure, self._facts = figure, explainer.scope
        self._where = lambda *key: explainer.where("calculators", number, *key)
        collected = Collected()
        parse = lambda text, *key: collected.get(lambda: _formula(text, self._where(*key)), None)
        self._steps = {name: parse(text, "steps", name) for name, text in figure.steps.items()}
        self._bars = [[parse(value, "bars", at) for value in bar.values] for at, bar in enumerate(figure.bars)]
        self._whens = [parse(saying.when, "says", at) for at, saying in enumerate(figure.says)]
        self._texts = [
            collected.get(
                lambda at=at, saying=saying: render_line(saying.text, self._where("says", at), self._facts), ""
            )
            for at, saying in enumerate(figure.says)
        ]
        collected.raise_all()
        for inputs in self._tried():
            self.at(inputs)
        start = {name: one.start for name, one in figure.inputs.items()}
        self.start = self.at(start)
        self.most = max(max(values) for values in self.start["values"]) or 1
        self.presets = [(preset, self.at(preset.inputs)) for preset in figure.presets]
        self.varied = [name for name in figure.inputs if len({preset.inputs[name] for preset in figure.presets}) > 1]

    def _tried(self) -> Iterator[dict[str, float]]:
        """Every value of each control, and every corner of all of them: a reader may choose what no example has."""
        start = {name: one.start for name, one in self._figure.inputs.items()}
        for name, one in self._figure.inputs.items():
            yield from (start | {name: value} for value in one.values)
        ends = [(min(one.values), max(one.values)) for one in self._figure.inputs.values()]
        yield from (dict(zip(start, corner, strict=True)) for corner in itertools.product(*ends))

    def at(self, inputs: dict[str, float]) -> dict[str, Any]:
        """What the bars show and what is said. UserError for a bar that cannot be drawn."""
        names: dict[str, Any] = {**self._facts.names, **inputs}
        for name, step in self._steps.items():
            names[name] = step.value(Scope(names))
        scope = Scope(names)
        values = [[one.value(scope) for one in bar] for bar in self._bars]
        for at, bar in enumerate(values):
            for value in bar:
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                    raise UserError(problem(self._where("bars", at), "a bar needs a number that is not negative", got=f"{value} where {', '.join(f'{name} = {one:g}' for name, one in inputs.items())}", next="mend the formula"))  # fmt: skip
        said = next(text for when, text in zip(self._whens, self._texts, strict=True) if when.value(scope))
        return {"values": values, "said": said}

    def script(self) -> str:
        """An object of JavaScript: values and labels of the controls, and functions of `v`, what is chosen and computed."""
        variables = {*self._figure.inputs, *self._figure.steps}
        formula = lambda one: one.javascript(self._facts, variables)
        inputs = {
            name: [[value, FORMATS[one.format](value)] for value in one.values]
            for name, one in self._figure.inputs.items()
        }
        steps = " ".join(f"v.{name} = {formula(step)};" for name, step in self._steps.items())
        bars = ", ".join(f"function (v) {{ return {formula(one)}; }}" for bar in self._bars for one in bar)
        says = ", ".join(
            f"[function (v) {{ return {formula(when)}; }}, {json_for_script(text)}]"
            for when, text in zip(self._whens, self._texts, strict=True)
        )
        return f"{{\ninputs: {json_for_script(inputs)},\nsteps: function (v) {{ {steps} }},\nbars: [{bars}],\nsays: [{says}]\n}}"


def _formula(text: str, where: str) -> Expression:
    expression = Expression(text, where)
    if expression.format:
        raise UserError(problem(where, "a formula has no format", got=text, next=f"take | {expression.format} out"))
    return expression
