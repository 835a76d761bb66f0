"""The lines of a chart -> an Altair chart -> static SVGs, and what page.js needs to draw it live; the table of its numbers.

One function makes the static and the live version, so they cannot disagree: they differ in the number of points, and
in who places the arms' names at the lines' ends (a live chart can be zoomed, so page.js places them anew). Colours are
CSS variables: the page's light or dark scheme colours the chart without a second drawing.
"""

import copy
import hashlib
import html
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from engine.cache import kept
from engine.lesson import Chart, Lesson
from engine.publishing.compare import Verdict, by_arm
from engine.publishing.curves import INTERACTIVE_POINTS, KEY, STATIC_POINTS, Lines, drawn_runs, lines_of, thinned
from engine.runs import UNITS, Run

STATIC_WIDTHS = {"wide": 640, "narrow": 340}  # px; a wide one shrunk to a phone would have letters of 5 px
HEIGHT = 300
PICTURE_POINTS = {"mean": 40}
DASHES = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3], [4, 4], [12, 4])  # arms are told apart without colour too
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
    live: dict[str, Any] | None  # for page.js; None for a chart that has nothing to move
    axes: dict[str, str]
    labels: dict[str, str]
    dashes: list[str]  # of the arms, as SVG writes them
    ends: dict[str, str]  # arm -> its mean where its line ends
    noisy: bool
    can_log: bool
    with_mine: bool
    columns: list[str]
    rows: list[list[str]]


def draw_all(
    lesson: Lesson, captions: list[str], runs: list[Run], mine: list[Run], prefix: str = "chart"
) -> tuple[list[Drawn], str]:
    """All charts of a lesson in one profile, and the small picture of the first. Curves of one unit from one step on
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
    picture = next((small_picture(one) for one in lines if one is not None), drawn[0].svgs["narrow"])
    return drawn, picture


def _panel_of(chart: Chart, number: int) -> Any:
    """Charts with equal keys are panels of one picture: a reader may compare heights between them."""
    return (UNITS[chart.metric][1], chart.from_step) if chart.kind == "curve" else number


def _widest(one: tuple[Range, Range], other: tuple[Range, Range]) -> tuple[Range, Range]:
    return tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(one, other, strict=True))  # type: ignore[return-value]


def draw(chart: Chart, caption: str, lines: Lines, frame: tuple[Range, Range], ident: str) -> Drawn:
    few = thinned(opening(lines.points), STATIC_POINTS)
    spec = chart_spec(chart, lines, frame)
    svgs = {
        name: static_svg(filled(spec, lines, few, frame, width), chart.title, caption, f"{ident}-{name}")
        for name, width in STATIC_WIDTHS.items()
    }
    return Drawn(
        ident, chart, caption, svgs, _live(chart, lines, frame, spec), lines.axes, lines.labels,
        [" ".join(map(str, dash)) for dash in DASHES], _ends(lines),
        noisy="weak" in lines.points, can_log=bool((lines.points["y"] > 0).any()), with_mine=not lines.only("mine").empty,
        **_table(chart, lines),
    )  # fmt: skip


def opening(points: pd.DataFrame) -> pd.DataFrame:
    """As a page opens: of a noisy metric the means are weakly smoothed, and the seeds stay as they were."""
    if "weak" not in points:
        return points
    return points.assign(y=points["y"].where(points["line"] != "mean", points["weak"]))


def _ends(lines: Lines) -> dict[str, str]:
    ends = opening(lines.points)
    ends = ends[ends["line"] == "mean"].groupby("arm")["y"].last()
    return {arm: f"{ends[arm]:,.4g}" if arm in ends else "\N{EN DASH}" for arm in lines.labels}


def _frame(chart: Chart, lines: Lines) -> tuple[Range, Range]:
    """The ranges of both axes, with room for the arms' names."""
    x = lines.points[next(iter(lines.axes))]
    low = float(x.min()) if chart.kind == "sweep" else float(chart.from_step)
    return (low, float(x.max())), _with_room_for_labels(lines.points)


def chart_spec(chart: Chart, lines: Lines, frame: tuple[Range, Range]) -> dict[str, Any]:
    """The Vega-Lite spec without its data: those go under the names "points", "marks" and "names"."""
    values = tuple(sorted(set(lines.points["value"]))) if chart.kind == "sweep" else ()
    spec = copy.deepcopy(_shape(chart.kind, tuple(lines.labels), _falls(lines.points), values))
    titles = {"x": next(iter(lines.axes.values())), "y": chart.y_label}
    for layer in spec["layer"]:
        for channel, domain in zip(("x", "y"), frame, strict=True):
            encoded = layer["encoding"].get(channel, {})
            if "scale" in encoded:
                encoded["scale"]["domain"], encoded["title"] = list(domain), titles[channel]
    return spec


@lru_cache(maxsize=64)
def _shape(kind: str, arms: tuple[str, ...], falls: bool, values: tuple[float, ...]) -> dict[str, Any]:
    """The spec that charts of one kind, with the same arms, have in common. Altair copies and checks every part of a chart
    many times over, which takes longer than the drawing: so once a shape and not once a chart."""
    # Numbers that keep their distance, at the ends too.
    axis, scale = (
        alt.Axis(tickCount=alt.ExprRef("width < 400 ? 5 : 9"), labelOverlap=True),
        alt.Scale(nice=False, domain=[0, 1]),
    )
    if values:
        axis = alt.Axis(format="~g", values=list(values))
        scale = alt.Scale(
            nice=False, domain=[0, 1], type="log" if values[0] > 0 else "linear"
        )  # both sizes of step alike
    x = alt.X("x:Q", axis=axis, scale=scale)
    y = alt.Y("y:Q", axis=alt.Axis(tickCount=7), scale=alt.Scale(nice=False, domain=[0, 1]))
    style, ink = _arm_style(arms), {"color": "currentColor"}
    by_line = {"x": x, "y": y, "detail": ["line:N", "seed:N"], **({"order": "order:Q"} if kind == "progress" else {})}
    of_line = lambda line: alt.Chart(alt.NamedData("points")).transform_filter(f"datum.line == '{line}'")
    if kind == "sweep":
        seed = of_line("seed").mark_point(size=28, filled=True, opacity=0.55).encode(**by_line, color=style["color"])
        mine = of_line("mine").mark_point(size=60, shape="diamond", **ink).encode(**by_line)
    else:
        seed = of_line("seed").mark_line(strokeWidth=1, opacity=0.45).encode(**by_line, **style)
        mine = of_line("mine").mark_line(strokeWidth=1.5, **ink).encode(**by_line, strokeDash=style["strokeDash"])
    mean = of_line("mean").mark_line(strokeWidth=2.5).encode(**by_line, **style)
    return _finish(
        [seed, mean, mine, *_mark_layers(x, y, style), *_name_layers(falls, x, y, style)], STATIC_WIDTHS["wide"]
    )


def _mark_layers(x: alt.X, y: alt.Y, style: dict[str, Any]) -> list[alt.Chart]:
    """Kills tick the x axis, a cross stands where a progress falls or where a loss became infinite, a line ends the warmup."""
    marks = alt.Chart(alt.NamedData("marks"))
    of_kind = lambda kind: marks.transform_filter(f"datum.kind == '{kind}'").encode(x=x)
    ink = {"color": "currentColor"}
    cross = {"shape": "cross", "angle": 45, "size": 90, "filled": True, "opacity": 1}
    return [
        of_kind("kill").mark_rule(opacity=0.5, **ink).encode(y=alt.value(HEIGHT - 12), y2=alt.value(HEIGHT)),
        of_kind("warmup").mark_rule(opacity=0.5, strokeDash=[3, 3], **ink).encode(y=alt.value(0), y2=alt.value(HEIGHT)),
        of_kind("warmup").mark_text(align="left", dx=5, fontSize=11, opacity=0.8, **ink).encode(text="label:N", y=alt.value(8)),
        of_kind("fall").mark_point(**cross).encode(y=y, color=style["color"]),
        of_kind("diverged").mark_point(**cross).encode(y=alt.value(9), color=style["color"]),
    ]  # fmt: skip


def _name_layers(falls: bool, x: alt.X, y: alt.Y, style: dict[str, Any]) -> list[alt.Chart]:
    """The arms' names at the lines' ends, each on a halo of paper."""
    base = alt.Chart(alt.NamedData("names")).encode(x=x, y=y, text="label:N")
    look = {"align": "right", "dx": -4, "dy": 11 if falls else -11, "fontSize": 13, "fontWeight": 600}
    halo = base.mark_text(**look, stroke="var(--paper)", strokeWidth=4, strokeJoin="round", color="var(--paper)")
    return [halo, base.mark_text(**look).encode(color=style["color"])]


def filled(
    spec: dict[str, Any], lines: Lines, points: pd.DataFrame, frame: tuple[Range, Range], width: int
) -> dict[str, Any]:
    """The static chart: the spec with its data and its width."""
    drawn = points.assign(x=points[next(iter(lines.axes))], order=range(len(points)))[[*KEY, "x", "y", "order"]]
    names = _names(lines, frame, width)
    datasets = {
        "points": drawn.to_dict("records"),
        "marks": json.loads(lines.marks.to_json(orient="records")),
        "names": names,
    }
    return spec | {"width": width, "datasets": datasets}


def _arm_style(labels: Iterable[str]) -> dict[str, Any]:
    domain = list(labels)
    colors = [f"var(--arm-{number})" for number in range(len(domain))]
    dashes = list(DASHES[: len(domain)])
    return {
        "color": alt.Color("arm:N", legend=None, scale=alt.Scale(domain=domain, range=colors)),
        "strokeDash": alt.StrokeDash("arm:N", legend=None, scale=alt.Scale(domain=domain, range=dashes)),
    }


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
    near_x, span = LABEL_WIDTH / width * frame[0][1], frame[1][1] - frame[1][0]
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
        rows.append({"x": at_x, "y": place, "arm": role, "label": labels[role]})
        ended[ends[role]] = rows[-1]
    return rows


def _finish(layers: list[alt.Chart], width: int, height: int = HEIGHT) -> dict[str, Any]:
    ink = {name: "currentColor" for name in ("labelColor", "titleColor", "domainColor", "tickColor", "gridColor")}
    small = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    chart = (
        alt.layer(*layers)
        .properties(width=width, height=height)
        .configure(font="system-ui, sans-serif", background="transparent")
        .configure_axis(**ink, **small, gridOpacity=0.12, domainOpacity=0.4, tickOpacity=0.4)
        .configure_view(stroke=None)
    )
    return chart.to_dict()


def static_svg(spec: dict[str, Any], title: str, description: str, ident: str) -> str:
    """SVG markup that a screen reader announces: vl-convert itself drops title and description."""
    svg = to_svg(spec)
    names = f'<title id="{ident}-t">{html.escape(title)}</title><desc id="{ident}-d">{html.escape(description)}</desc>'
    head, _, body = svg.partition(">")
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
        "arms": list(lines.labels.items()),
        "lines": [
            dict(zip(KEY, key, strict=True)) | _columns(lines.axes, part)
            for key, part in sorted(parts, key=lambda part: (list(lines.labels).index(part[0][0]), part[0]))
        ],
        "marks": json.loads(lines.marks.to_json(orient="records")),
        "x": frame[0],
        "range": frame[1],
        "falls": _falls(lines.points),
        "spec": spec,
    }


def _columns(axes: dict[str, str], part: pd.DataFrame) -> dict[str, Any]:
    """Column -> values with five digits; or the factor, where a column is a multiple of the step."""
    columns: dict[str, Any] = {}
    for name in (*axes, "y", *(name for name in ("weak", "strong") if name in part and part["line"].iloc[0] == "mean")):
        values = part[name].tolist()
        steps = part["step"].tolist() if "step" in part else []
        factor = values[-1] / steps[-1] if steps and steps[-1] else 0
        if name in ("tokens", "bytes") and factor.is_integer() and values == [step * factor for step in steps]:
            columns[name] = int(factor)
        else:
            columns[name] = [int(value) if value == int(value) else float(f"{value:.5g}") for value in values]
    return columns


def json_for_script(value: Any) -> str:
    """Strict JSON that no text in it can end a <script> around."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _table(chart: Chart, lines: Lines) -> dict[str, Any]:
    """Column heads and rows of what the chart shows: the same numbers for those who read tables better than lines."""
    labels = lines.labels
    if chart.kind == "progress":
        rows = [[labels[row.arm], f"{row.wall_s:,.1f}", f"{row.y:,.0f}"] for row in lines.only("mean").itertuples()]
        return {"columns": ["arm", "seconds", "steps done"], "rows": rows}
    axis = next(iter(lines.axes))
    mean = lines.only("mean").pivot_table(index=axis, columns="arm", values="y")
    seeds = lines.only("seed")
    spread = seeds.groupby([axis, "arm"])["y"].std().fillna(0).unstack()
    several = seeds["seed"].nunique() > 1  # one seed shows no noise, and "± 0" would claim there is none

    def cell(x: float, role: str) -> str:
        if pd.isna(mean.loc[x, role]):
            return "–" if chart.kind == "curve" else "diverged"
        return f"{mean.loc[x, role]:.4f}" + (f" ± {spread.loc[x, role]:.4f}" if several else "")

    roles = [role for role in labels if role in mean]
    at = "{:g}" if chart.kind == "sweep" else "{:,.0f}"
    # A noisy metric has a value a step: every so many of them is table enough, and the CSV has them all.
    shown = mean.index[:: max(1, len(mean) // 50)]
    rows = [[at.format(x), *(cell(x, role) for role in roles)] for x in shown]
    return {"columns": [lines.axes[axis], *(labels[role] for role in roles)], "rows": rows}


def draw_bars(lesson: Lesson, chart: Chart, caption: str, runs: list[Run], ident: str) -> Drawn:
    """One bar an arm: the mean of a final number, every seed as a dot on it."""
    finals = {
        role: [value for run in of_arm if (value := run.final(chart.metric)) is not None]
        for role, of_arm in by_arm(drawn_runs(lesson, chart, runs)).items()
    }
    finals = {role: finals[role] for role in lesson.arms if finals.get(role)}
    labels = {role: lesson.arms[role].label for role in finals}
    means = {role: sum(values) / len(values) for role, values in finals.items()}
    svgs = {
        name: static_svg(_bars(chart, finals, means, labels, width), chart.title, caption, f"{ident}-{name}")
        for name, width in STATIC_WIDTHS.items()
    }
    rows = [[labels[role], f"{means[role]:,.4g}", f"{min(values):,.4g} to {max(values):,.4g}"] for role, values in finals.items()]  # fmt: skip
    return Drawn(
        ident,
        chart,
        caption,
        svgs,
        None,
        {},
        labels,
        [],
        {},
        False,
        False,
        False,
        ["arm", chart.y_label, "seeds"],
        rows,
    )


def _bars(chart: Chart, finals: dict[str, list[float]], means: dict[str, float], labels: dict[str, str], width: int) -> dict[str, Any]:  # fmt: skip
    """Each arm's name stands above its bar: beside it, long names would leave no room for the bar on a phone."""
    rows = pd.DataFrame([{"arm": role, "label": f"{labels[role]}: {mean:,.4g}", "y": mean} for role, mean in means.items()])  # fmt: skip
    dots = pd.DataFrame([{"arm": role, "y": value} for role, values in finals.items() for value in values])
    color = _arm_style(labels)["color"]
    y = alt.Y("arm:N", sort=list(labels), axis=None, scale=alt.Scale(paddingInner=0.55, paddingOuter=0.5))
    x = alt.X("y:Q", title=chart.y_label, axis=alt.Axis(tickCount=5 if width < 400 else 9), scale=alt.Scale(zero=True))
    return _finish(
        [
            alt.Chart(rows).mark_bar(opacity=0.75).encode(x=x, y=y, color=color),
            alt.Chart(dots).mark_point(size=22, filled=True, opacity=1, color="currentColor").encode(x=x, y=y),
            alt.Chart(rows)
            .mark_text(align="left", baseline="bottom", fontSize=13, fontWeight=600, dy=-14, color="currentColor")
            .encode(x=alt.value(0), y=y, text="label:N"),
        ],
        width,
        46 * len(labels) + 14,
    )


def seed_strip(lesson: Lesson, verdict: Verdict, runs: list[Run], ident: str) -> str:
    """One dot a seed for both arms of a verdict, joined where they are paired. SVG markup, or "" if no seed has a number."""
    arms, unit = by_arm(runs), lesson.spec.metric
    rows = [
        {"arm": role, "seed": run.seed, "x": run.final(unit.name)}
        for role in (verdict.first, verdict.second)
        for run in arms[role]
        if run.final(unit.name) is not None and math.isfinite(run.final(unit.name))
    ]
    if not rows:
        return ""
    labels = {role: lesson.arms[role].label for role in (verdict.first, verdict.second)}
    points = pd.DataFrame(rows)
    span = points["x"].max() - points["x"].min() or 1.0
    domain = [points["x"].min() - 0.06 * span, points["x"].max() + 0.06 * span]
    x = alt.X("x:Q", title=unit.title, axis=alt.Axis(tickCount=4), scale=alt.Scale(domain=domain, nice=False))  # fmt: skip
    y = alt.Y("arm:N", sort=list(labels), axis=None, scale=alt.Scale(paddingInner=0.5, paddingOuter=0.6))
    color = alt.Color(
        "arm:N",
        legend=None,
        scale=alt.Scale(domain=list(labels), range=[f"var(--arm-{list(lesson.arms).index(role)})" for role in labels]),
    )
    base = alt.Chart(points)
    layers = [base.mark_point(size=70, filled=True, opacity=0.75).encode(x=x, y=y, color=color)]
    if verdict.seeds:
        layers.insert(
            0, base.mark_line(color="currentColor", opacity=0.3, strokeWidth=1).encode(x=x, y=y, detail="seed:N")
        )
    for (role, label), dy in zip(labels.items(), (-16, 18), strict=True):  # outside, where no joining line crosses them
        name = alt.Chart(pd.DataFrame([{"arm": role, "label": label}]))
        style = {"align": "left", "fontSize": 13, "fontWeight": 600, "dy": dy}
        layers.append(name.mark_text(**style).encode(x=alt.value(0), y=y, text="label:N", color=color))
    title = f"{unit.label} of each seed"
    return static_svg(_finish(layers, STATIC_WIDTHS["narrow"], 130), title, " and ".join(labels.values()), ident)


def small_picture(drawn_lines: Lines) -> str:
    """The mean lines alone, without axes: a lesson's picture in a list. It says nothing that the text beside it does not."""
    first = next(iter(drawn_lines.axes))
    mean = opening(drawn_lines.points)
    mean = mean[mean["line"] == "mean"]
    mean = thinned(mean.assign(x=mean[first]), PICTURE_POINTS)
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[mean["x"].min(), mean["x"].max()], nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[mean["y"].min(), mean["y"].max()], nice=False))
    style = _arm_style(drawn_lines.labels)
    line = (
        alt.Chart(mean.assign(order=range(len(mean))))
        .mark_line(strokeWidth=2)
        .encode(x=x, y=y, order="order:Q", **style)
    )
    return to_svg(_finish([line], 200, 76)).replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
