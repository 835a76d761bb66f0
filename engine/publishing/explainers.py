"""An explainer -> its page: figures whose bytes travel, figures with controls, and where every number comes from."""

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError, problem, shown
from engine.explainer import Calculator, Explainer, Paths, Place, Route
from engine.expressions import FORMATS, Expression, Scope, written
from engine.lesson import Site
from engine.publishing.feeds import json_for_script
from engine.publishing.lists import templates
from engine.publishing.prose import linked_files, render_line, render_prose

# Of a path's drawing, in its own units; 320 of them are a phone's width.
WIDTH, CELL_HEIGHT, BOX_WIDTH, BOX_HEIGHT, LETTERS = 320, 92, 92, 42, 13
LINE_HEIGHT, MARGIN, ARROW = 15, 14, 9


@dataclass(frozen=True)
class ExplainerPage:
    """An explainer's page, and what lists say of it."""

    address: str  # e.g. explainers/gpudirect/
    texts: dict[str, str]  # title, question, summary
    date: str
    source: Path
    files: dict[str, bytes]  # address below the site's root -> content
    links: list[tuple[str, int]]  # of the prose: (target, line of page.md)


def explainer_page(site: Site, explainer: Explainer) -> ExplainerPage:
    """UserError with every problem of its texts, formulas and prose."""
    spec, scope = explainer.spec, explainer.scope
    line = lambda text, where: render_line(text, f"{explainer.toml} {where}", scope)
    macros = templates().get_template("explainer_figures.html").module
    calculators = {one.id: _calculated(one, explainer, line) for one in spec.calculators}
    figures = {one.id: str(macros.paths(one, _routes(one, line), line(one.caption, one.id))) for one in spec.paths}
    figures |= {one.id: str(macros.calculator(one, calculators[one.id], FORMATS)) for one in spec.calculators}
    texts = {key: line(getattr(spec, key), key) for key in ("title", "question", "summary")}
    prose = render_prose(
        explainer.page.read_text(encoding="utf-8"), shown(explainer.page), scope, {"main", "sources", *figures}, (), site.glossary, "../../", figures
    )  # fmt: skip
    if lost := [ident for ident in figures if f'id="{ident}"' not in prose.html]:
        raise UserError(*(problem(explainer.toml, "a figure that page.md does not show", got=ident, next=f"add a block ```figure {ident}``` to page.md") for ident in lost))  # fmt: skip
    address = f"explainers/{explainer.name}/"
    html = templates().get_template("explainer.html").render(
        site=site, root="../../", explainer=explainer, texts=texts, prose=prose.html, address=address
    )  # fmt: skip
    scripts = {ident: one["script"] for ident, one in calculators.items()}
    body = ",\n".join(f"{json_for_script(ident)}: {script}" for ident, script in scripts.items())
    files = linked_files(explainer.folder, prose.links) | {
        "index.html": html.encode(),
        "figures.js": f"window.calculators = {{{body}}};\n".encode(),
    }
    return ExplainerPage(
        address, texts, str(spec.date), explainer.page, {address + name: content for name, content in files.items()}, prose.links
    )  # fmt: skip


def _routes(figure: Paths, line: Any) -> list[dict[str, Any]]:
    """Each route with the coordinates of its drawing. Places that a route does not touch are drawn too, faintly."""
    columns = 1 + max(place.at[0] for place in figure.places.values())
    middles = {
        name: (WIDTH * (place.at[0] + 0.5) / columns, MARGIN + CELL_HEIGHT * (place.at[1] + 0.5))
        for name, place in figure.places.items()
    }
    height = 2 * MARGIN + CELL_HEIGHT * (1 + max(place.at[1] for place in figure.places.values()))
    return [
        {
            "label": route.label, "width": WIDTH, "height": round(height),
            "boxes": [_box(name, place, middles[name], route) for name, place in figure.places.items()],
            "frames": [_frame(frame.label, [middles[name] for name in frame.around]) for frame in figure.frames],
            "moves": [
                _arrow(middles[move.start], middles[move.end]) | {"text": line(move.text, f"{figure.id}, {route.label}")}
                for move in route.moves
            ],
        }
        for route in figure.routes
    ]  # fmt: skip


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


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> dict[str, Any]:
    """A line from box to box with its head, and the middle, where its number stands."""
    (x1, y1), (x2, y2) = start, end
    dx, dy = x2 - x1, y2 - y1
    # How far along the line its box ends: where the first of the two sides is met.
    part = min(BOX_WIDTH / 2 / abs(dx) if dx else 1, BOX_HEIGHT / 2 / abs(dy) if dy else 1)
    x1, y1, x2, y2 = x1 + dx * part, y1 + dy * part, x2 - dx * part, y2 - dy * part
    length = max(1.0, (dx * dx + dy * dy) ** 0.5)
    ux, uy = dx / length, dy / length
    head = [
        (x2, y2),
        (x2 - ARROW * ux - 5 * uy, y2 - ARROW * uy + 5 * ux),
        (x2 - ARROW * ux + 5 * uy, y2 - ARROW * uy - 5 * ux),
    ]
    return {
        "x1": round(x1, 1), "y1": round(y1, 1), "x2": round(x2 - ARROW * ux, 1), "y2": round(y2 - ARROW * uy, 1),
        "head": " ".join(f"{x:.1f},{y:.1f}" for x, y in head), "x": round((x1 + x2) / 2, 1), "y": round((y1 + y2) / 2, 1),
        # Where what travels sets out and arrives: outside the boxes, so that it hides no name.
        "from": f"{x1 + ARROW * ux:.1f},{y1 + ARROW * uy:.1f}", "to": f"{x2 - ARROW * ux:.1f},{y2 - ARROW * uy:.1f}",
    }  # fmt: skip


def _calculated(figure: Calculator, explainer: Explainer, line: Any) -> dict[str, Any]:
    """The still figure, its table of presets, and the same formulas for the page's script."""
    where, facts = f"{explainer.toml} {figure.id}", explainer.scope
    steps = {name: Expression(text, f"{where}.steps.{name}") for name, text in figure.steps.items()}
    bars = [[Expression(value, f"{where}: {bar.label}") for value in bar.values] for bar in figure.bars]
    whens = [Expression(saying.when, f"{where}: {saying.text}") for saying in figure.says]
    texts = [line(saying.text, figure.id) for saying in figure.says]

    def at(inputs: dict[str, float]) -> dict[str, Any]:
        names: dict[str, Any] = {**facts.names, **inputs}
        for name, step in steps.items():
            names[name] = step.value(Scope(names))
        said = next((text for when, text in zip(whens, texts, strict=True) if when.value(Scope(names))), None)
        if said is None:
            raise UserError(
                problem(where, "none of `says` holds", got=str(inputs), next='end the list with when = "1 == 1"')
            )
        return {"values": [[one.value(Scope(names)) for one in bar] for bar in bars], "said": said}

    start = {name: one.start for name, one in figure.inputs.items()}
    variables = {*figure.inputs, *figure.steps}
    script = lambda expression: expression.javascript(facts, variables)
    return {
        "caption": line(figure.caption, figure.id), "start": at(start), "most": max(max(values) for values in at(start)["values"]) or 1,
        "presets": [(preset, at(preset.inputs)) for preset in figure.presets], "written": written,
        "varied": [name for name in figure.inputs if len({preset.inputs[name] for preset in figure.presets}) > 1],
        "script": "{\n" + ",\n".join([
            f"inputs: {json_for_script({name: one.values for name, one in figure.inputs.items()})}",
            "steps: function (v) { " + " ".join(f"v.{name} = {script(step)};" for name, step in steps.items()) + " }",
            f"bars: [{', '.join(f'function (v) {{ return {script(one)}; }}' for bar in bars for one in bar)}]",
            f"says: [{', '.join(f'[function (v) {{ return {script(when)}; }}, {json_for_script(text)}]' for when, text in zip(whens, texts, strict=True))}]",
        ]) + "\n}",
    }  # fmt: skip
