"""The lines of a chart -> an Altair chart -> static SVGs, and what page.js needs to draw it live; the table of its numbers.

One function makes the static and the live version, so they cannot disagree: they differ in the number of points, and
in who places the arms' names at the lines' ends (a live chart can be zoomed, so page.js places them anew). Colours are
CSS variables: the page's light or dark scheme colours the chart without a second drawing.
"""

import hashlib
import html
import json
import math
import re
import textwrap
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import vl_convert

from engine.cache import kept
from engine.expressions import written
from engine.lesson import Chart, Lesson
from engine.publishing.compare import Verdict, by_arm
from engine.publishing.curves import (
    INTERACTIVE_POINTS,
    KEY,
    STATIC_POINTS,
    Lines,
    arms_drawn,
    drawn_runs,
    lines_of,
    thinned,
)
from engine.publishing.lists import TEMPLATES
from engine.publishing.shapes import DASHES, HEIGHT, PAPER, shape
from engine.runs import UNITS, Run

STATIC_WIDTHS = {"wide": 640, "narrow": 340}  # px; a wide one shrunk to a phone would have letters of 5 px
PICTURE_POINTS = {"mean": 40}
LABEL_GAP = 16 / HEIGHT  # between two labels at the lines' ends, as a share of the y axis
LETTER_WIDTH = 7.5  # px, of a name
LABEL_WIDTH = 110  # px; ends nearer than that have labels that could touch
Range = tuple[float, float]


@dataclass(frozen=True)
class Drawn:
    """A chart in all its forms, ready for a template."""

    ident: str
    chart: Chart
    caption: str
    svgs: dict[str, str]  # "wide" and "narrow" -> SVG markup
    columns: list[str]
    rows: list[list[str]]
    live: dict[str, Any] | None = None  # for page.js; None for a chart that has nothing to move
    axes: dict[str, str] = field(default_factory=dict)
    arms: list["DrawnArm"] = field(default_factory=list)
    end: str = ""  # where the arms' values stand
    noisy: bool = False
    can_log: bool = False
    with_mine: bool = False


@dataclass(frozen=True)
class DrawnArm:
    role: str
    label: str
    colour: int
    dash: str  # as SVG writes it
    end: str  # its mean where its line ends


def draw_all(
    lesson: Lesson, captions: list[str], runs: list[Run], mine: list[Run], prefix: str = "chart"
) -> tuple[list[Drawn], dict[str, Any]]:
    """All charts of a lesson in one profile, and the spec of the lesson's picture. Curves of one unit from one step on
    share their scales.

    UserError if there is nothing to draw, or a number is not finite.
    """
    charts = lesson.spec.charts
    lines = [None if chart.kind == "bars" else lines_of(lesson, chart, runs, mine) for chart in charts]
    frames: dict[Any, tuple[Range, Range]] = {}
    for number, (chart, of_chart) in enumerate(zip(charts, lines, strict=True)):
        if of_chart is not None:
            key, frame = _panel_of(chart, number), _frame(chart, of_chart)
            frames[key] = _widest(frames[key], frame) if key in frames else frame
    drawn = [
        draw_bars(lesson, chart, captions[number], runs, f"{prefix}-{number}")
        if of_chart is None
        else draw(chart, captions[number], of_chart, frames[_panel_of(chart, number)], f"{prefix}-{number}")
        for number, (chart, of_chart) in enumerate(zip(charts, lines, strict=True))
    ]
    first = next((one for one in lines if one is not None), None)
    return drawn, picture_spec(first) if first else bars_spec(lesson, charts[0], runs) | {
        "width": STATIC_WIDTHS["narrow"]
    }


def _panel_of(chart: Chart, number: int) -> Any:
    """Charts with equal keys are panels of one picture: a reader may compare heights between them."""
    return (UNITS[chart.metric][1], chart.from_step, chart.to_step, chart.x) if chart.kind == "curve" else number


def _widest(one: tuple[Range, Range], other: tuple[Range, Range]) -> tuple[Range, Range]:
    return tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(one, other, strict=True))  # type: ignore[return-value]


def draw(chart: Chart, caption: str, lines: Lines, frame: tuple[Range, Range], ident: str) -> Drawn:
    few = thinned(opening(lines.points), STATIC_POINTS)
    spec = chart_spec(chart, lines, frame)
    svgs = {
        name: static_svg(filled(spec, lines, few, frame, width), chart.title, caption, f"{ident}-{name}")
        for name, width in STATIC_WIDTHS.items()
    }
    columns, rows = _table(chart, lines)
    return Drawn(
        ident, chart, caption, svgs, columns, rows, _live(chart, lines, frame, spec), lines.axes, _arms(lines),
        end=end_of(chart, lines),
        noisy="weak" in lines.points, can_log=bool((lines.points["y"] > 0).any()), with_mine=not lines.only("mine").empty,
    )  # fmt: skip


def opening(points: pd.DataFrame) -> pd.DataFrame:
    """As a page opens: of a noisy metric the means are weakly smoothed, and the seeds stay as they were."""
    if "weak" not in points:
        return points
    return points.assign(y=points["y"].where(points["line"] != "mean", points["weak"]))


def _arms(lines: Lines) -> list[DrawnArm]:
    ends = opening(lines.points)
    ends = ends[ends["line"] == "mean"].groupby("arm")["y"].last()
    texts = {arm: written(ends[arm]) if arm in ends else "\N{EN DASH}" for arm in lines.labels}
    return [
        DrawnArm(arm, lines.labels[arm], number, " ".join(map(str, DASHES[number])), texts[arm])
        for arm, number in arms_of(lines)
    ]


def _frame(chart: Chart, lines: Lines) -> tuple[Range, Range]:
    """The ranges of both axes, with room for the arms' names."""
    x = lines.points[next(iter(lines.axes))]
    low = float(chart.from_step) if chart.kind == "curve" and chart.x == "step" else float(x.min())
    return (low, float(x.max())), _with_room_for_labels(lines.points)


def chart_spec(chart: Chart, lines: Lines, frame: tuple[Range, Range]) -> dict[str, Any]:
    """The Vega-Lite spec without its data: those go under the names "points", "marks" and "names"."""
    values = tuple(sorted(set(lines.points["value"]))) if chart.kind == "sweep" else ()
    x, y = (next(iter(lines.axes.values())), frame[0]), (chart.y_label, frame[1])
    return shape("lines", chart.kind, arms_of(lines), _falls(lines.points), values, x=x, y=y)


def filled(
    spec: dict[str, Any], lines: Lines, points: pd.DataFrame, frame: tuple[Range, Range], width: int
) -> dict[str, Any]:
    """The static chart: the spec with its data and its width, and without the layers that have nothing to show: each
    costs a tenth of the drawing."""
    drawn = points.assign(x=points[next(iter(lines.axes))], order=range(len(points)))[[*KEY, "x", "y", "order"]]
    names = _names(lines, frame, width)
    datasets = {
        "points": drawn.to_dict("records"),
        "marks": json.loads(lines.marks.to_json(orient="records")),
        "names": names,
    }
    there = {f"datum.line == '{line}'" for line in set(points["line"])}
    there |= {f"datum.kind == '{kind}'" for kind in set(lines.marks["kind"])}
    shown = [one for one in spec["layer"] if all(step["filter"] in there for step in one.get("transform", ()))]
    return spec | {"width": width, "datasets": datasets, "layer": shown}


def _with_room_for_labels(points: pd.DataFrame) -> Range:
    """The y range, longer at the end where the arms' names will stand."""
    low, high = float(points["y"].min()), float(points["y"].max())
    span = (high - low) or abs(high) or 1.0
    labels = LABEL_GAP * (points["arm"].nunique() + 1)  # of the whole range, so the range grows by more
    room = span * labels / (1 - labels)
    return (low - room, high + 0.05 * span) if _falls(points) else (low - 0.05 * span, high + room)


def _falls(points: pd.DataFrame) -> bool:
    """Whether the lines go down: then the free place for names is below their ends, else above."""
    ends = points[points["line"] == "mean"].groupby("arm")["y"].agg(["first", "last"])
    return bool((ends["last"] < ends["first"]).mean() > 0.5)


def _names(lines: Lines, frame: tuple[Range, Range], width: int) -> list[dict[str, Any]]:
    """Where each arm's name stands; arms that end on one point share one name, close ones are moved apart."""
    axis, labels, mean = next(iter(lines.axes)), lines.labels, opening(lines.points)
    ends = {
        arm: (float(line[axis].iloc[-1]), float(line["y"].iloc[-1]))
        for arm, line in mean[mean["line"] == "mean"].groupby("arm")
    }
    sign = -1 if _falls(lines.points) else 1
    near_x, span = LABEL_WIDTH / width * (frame[0][1] - frame[0][0]), frame[1][1] - frame[1][0]
    rows: list[dict[str, Any]] = []
    ended: dict[tuple[float, float], dict[str, Any]] = {}
    for role in sorted(ends, key=lambda role: (sign * ends[role][1], list(labels).index(role))):
        at_x, at_y = ends[role]
        same = ended.get(ends[role])
        if same and (len(same["label"]) + len(labels[role]) + 3) * LETTER_WIDTH < width - 60:
            same["label"] += f" = {labels[role]}"
            continue
        beside = [row["y"] for row in rows if abs(row["x"] - at_x) < near_x]
        place = sign * max([sign * at_y, *(sign * other + LABEL_GAP * span for other in beside)])
        room = (at_x - frame[0][0]) / (frame[0][1] - frame[0][0]) * width
        align = "right" if room > min(len(labels[role]) * LETTER_WIDTH, width / 2) else "left"
        rows.append({"x": at_x, "y": place, "arm": role, "label": labels[role], "align": align})
        ended[ends[role]] = rows[-1]
    return rows


def static_svg(spec: dict[str, Any], title: str, description: str, ident: str) -> str:
    """SVG markup that a screen reader announces: vl-convert itself drops title and description."""
    svg = to_svg(spec)
    names = f'<title id="{ident}-t">{html.escape(title)}</title><desc id="{ident}-d">{html.escape(description)}</desc>'
    head, _, body = svg.replace(f'stroke="{PAPER}"', f'stroke="{PAPER}" paint-order="stroke"').partition(">")
    head = head.replace("<svg", f'<svg role="img" aria-labelledby="{ident}-t {ident}-d"', 1)
    return f"{head}>{names}{body}"


def to_svg(spec: dict[str, Any]) -> str:
    """Kept by its spec: a page whose prose alone changed need not start the drawing library, which takes most of a second."""
    text = json.dumps(spec, allow_nan=False)
    key = hashlib.sha256(f"{vl_convert.__version__} {text}".encode()).hexdigest()
    return kept(f"svg/{key[:40]}.svg", lambda: vl_convert.vegalite_to_svg(text).encode()).decode()


def _live(chart: Chart, lines: Lines, frame: tuple[Range, Range], spec: dict[str, Any]) -> dict[str, Any]:
    """What page.js draws: every line as columns, the marks, and the Vega-Lite spec that they are put into."""
    parts = thinned(lines.points, INTERACTIVE_POINTS).groupby(KEY)
    return {
        "axes": list(lines.axes.items()),
        "y": chart.y_label,
        "arms": [(arm, lines.labels[arm], number) for arm, number in arms_of(lines)],
        "lines": [
            dict(zip(KEY, key, strict=True)) | _columns(lines.axes, part)
            for key, part in sorted(parts, key=lambda part: (list(lines.labels).index(part[0][0]), part[0]))
        ],
        "marks": json.loads(lines.marks.to_json(orient="records")),
        "x": frame[0],
        "range": frame[1],
        "falls": _falls(lines.points),
        "end": end_of(chart, lines),
        "spec": spec,
    }


def _columns(axes: dict[str, str], part: pd.DataFrame) -> dict[str, Any]:
    """Column -> values; or the factor, where a column is a multiple of the step. Digits are what a page shows, and one more."""
    columns: dict[str, Any] = {}
    faint = part["line"].iloc[0] == "seed"
    for name in (*axes, "y", *(name for name in ("weak", "strong") if name in part and part["line"].iloc[0] == "mean")):
        values = part[name].tolist()
        steps = part["step"].tolist() if "step" in part else []
        factor = values[-1] / steps[-1] if steps and steps[-1] else 0
        multiple = all(
            math.isclose(value, step * factor, rel_tol=1e-9) for value, step in zip(values, steps, strict=False)
        )
        if name in ("tokens", "bytes", "gflops") and factor and multiple:
            columns[name] = factor
        else:
            digits = 4 if faint or name == "wall_s" else 6 if name == "y" else 5
            columns[name] = [int(value) if value == int(value) else float(f"{value:.{digits}g}") for value in values]
    return columns


def _table(chart: Chart, lines: Lines) -> tuple[list[str], list[list[str]]]:
    """Column heads and rows of what the chart shows: the same numbers for those who read tables better than lines."""
    labels = lines.labels
    if chart.kind == "progress":
        rows = [[labels[row.arm], f"{row.wall_s:,.1f}", f"{row.y:,.0f}"] for row in lines.only("mean").itertuples()]
        return ["arm", "seconds", "steps done"], rows
    axis = "step" if "step" in lines.axes else next(iter(lines.axes))
    mean = lines.only("mean").pivot_table(index=axis, columns="arm", values="y")
    seeds = lines.only("seed")
    spread = seeds.groupby([axis, "arm"])["y"].std().fillna(0).unstack()
    several = (
        seeds.groupby("arm")["seed"].nunique().max() > 1
    )  # one seed shows no noise, and "± 0" would claim there is none

    def cell(x: float, role: str) -> str:
        if pd.isna(mean.loc[x, role]):
            return "–" if chart.kind == "curve" else "diverged"
        return f"{mean.loc[x, role]:.4f}" + (f" ± {spread.loc[x, role]:.4f}" if several else "")

    roles = [role for role in labels if role in mean]
    at = "{:g}" if chart.kind == "sweep" else "{:,.0f}"
    # A noisy metric has a value a step: every so many of them is table enough, and the CSV has them all.
    shown = dict.fromkeys([*mean.index[:: max(1, len(mean) // 50)], mean.index[-1]])
    rows = [[at.format(x), *(cell(x, role) for role in roles)] for x in shown]
    return [lines.axes[axis], *(labels[role] for role in roles)], rows


def draw_bars(lesson: Lesson, chart: Chart, caption: str, runs: list[Run], ident: str) -> Drawn:
    """One bar an arm: the mean of a final number, every seed as a dot on it."""
    spec, finals = bars_spec(lesson, chart, runs), _finals(lesson, chart, runs)
    svgs = {name: static_svg(spec | {"width": width}, chart.title, caption, f"{ident}-{name}") for name, width in STATIC_WIDTHS.items()}  # fmt: skip
    rows = [
        [lesson.arms[role].label, written(_mean(values)), f"{written(min(values))} to {written(max(values))}"]
        for role, values in finals.items()
    ]
    return Drawn(ident, chart, caption, svgs, ["arm", chart.y_label, "seeds"], rows)


def bars_spec(lesson: Lesson, chart: Chart, runs: list[Run]) -> dict[str, Any]:
    finals = _finals(lesson, chart, runs)
    labels, colours = arms_drawn(lesson, [run for run in runs if run.arm in finals])
    spec = shape("bars", tuple(colours.items()), x=(chart.y_label, None))
    bars = [{"arm": role, "label": f"{labels[role]}: {written(_mean(values))}", "y": _mean(values)} for role, values in finals.items()]  # fmt: skip
    dots = [{"arm": role, "y": value} for role, values in finals.items() for value in values]
    return spec | {"datasets": {"bars": bars, "points": dots}}


def _finals(lesson: Lesson, chart: Chart, runs: list[Run]) -> dict[str, list[float]]:
    """Arm -> the final number of each of its runs that has one, in the lesson's order."""
    by_role = by_arm(drawn_runs(lesson, chart, runs))
    scale = 1e-6 if chart.metric == "peak_mem_bytes" else 1  # megabytes: nobody reads nine digits
    finals = {role: [value * scale for run in by_role.get(role, []) if (value := run.final(chart.metric)) is not None] for role in lesson.arms}  # fmt: skip
    return {role: values for role, values in finals.items() if values}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def seed_strip(lesson: Lesson, verdict: Verdict, runs: list[Run], ident: str) -> str:
    """One dot a seed for both arms of a verdict, joined where they are paired. SVG markup, or "" if no seed has a number."""
    arms, metric, pair = by_arm(runs), lesson.spec.metric, (verdict.first, verdict.second)
    finals = [(role, run.seed, run.final(metric.name)) for role in pair for run in arms[role]]
    finals = [one for one in finals if one[2] is not None and math.isfinite(one[2])]
    if not finals:
        return ""
    low, high = min(value for *_, value in finals), max(value for *_, value in finals)
    margin = 0.06 * ((high - low) or 1.0)
    names, numbers = arms_drawn(lesson, [*arms[pair[0]], *arms[pair[1]]])
    labels = [names[role] for role in pair]
    of_pair = tuple((role, numbers[role]) for role in pair)
    spec = shape("strip", of_pair, bool(verdict.seeds), x=(metric.title, (low - margin, high + margin)))
    spec["datasets"] = {
        "points": [{"arm": role, "seed": seed, "x": value} for role, seed, value in finals],
        "names": [
            {"arm": role, "label": label, "first": role == pair[0]} for role, label in zip(pair, labels, strict=True)
        ],
    }
    return static_svg(
        spec | {"width": STATIC_WIDTHS["narrow"]}, f"{metric.label} of each seed", " and ".join(labels), ident
    )


def picture_spec(lines: Lines) -> dict[str, Any]:
    """The mean lines alone, without axes."""
    mean = opening(lines.points)
    mean = mean[mean["line"] == "mean"]
    mean = thinned(mean.assign(x=mean[next(iter(lines.axes))]), PICTURE_POINTS)
    for name in ("x", "y"):
        low, high = mean[name].min(), mean[name].max()
        mean[name] = (mean[name] - low) / ((high - low) or 1.0)
    points = mean.assign(order=range(len(mean)))[["arm", "x", "y", "order"]].to_dict("records")
    return shape("picture", arms_of(lines)) | {"datasets": {"points": points}}


def small_picture(spec: dict[str, Any]) -> str:
    """A lesson's picture in a list. It says nothing that the text beside it does not."""
    return to_svg(spec).replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)


def social_picture(spec: dict[str, Any], title: str, kicker: str) -> bytes:
    """The picture that a link to the lesson is shown with: its curves under its title, in letters that a phone can show. PNG."""
    words = {"text": textwrap.wrap(title, 26)[:2], "subtitle": kicker, "anchor": "start", "fontSize": 76, "subtitleFontSize": 38, "subtitlePadding": 16, "offset": 44, "color": "#1c1e21", "subtitleColor": "#565c64"}  # fmt: skip
    layers = [one | {"mark": one["mark"] | {"strokeWidth": 9}} for one in spec["layer"]]
    frame = {"width": 1200, "height": 630, "padding": 70, "autosize": {"type": "fit", "contains": "padding"}}
    text = json.dumps(spec | frame | {"title": words, "layer": layers, "background": "#fdfdfb"}, allow_nan=False)
    for number, colour in re.findall(
        r"--arm-(\d): light-dark\((#\w+)", (TEMPLATES / "style.css").read_text(encoding="utf-8")
    ):
        text = text.replace(f"var(--arm-{number})", colour)  # a picture file has no stylesheet
    key = hashlib.sha256(f"{vl_convert.__version__} {text}".encode()).hexdigest()
    return kept(f"png/{key[:40]}.png", lambda: vl_convert.vegalite_to_png(text))


def end_of(chart: Chart, lines: Lines) -> str:
    """Where the values stand that a chart shows without a cursor."""
    axis, title = next(iter(lines.axes.items()))
    return f"{title}: {written(lines.points[axis].max())}" if chart.kind == "sweep" else "at the end"


def arms_of(lines: Lines) -> tuple[tuple[str, int], ...]:
    return tuple((arm, lines.colours[arm]) for arm in lines.labels)
