"""Runs -> an Altair chart -> the Vega-Lite text of the interactive chart, the static SVG, and the table of its numbers.

One chart function each makes both versions, so they cannot disagree: they differ in the number of points and in the
tooltips. Colours are CSS variables: the page's light and dark scheme colours the chart without a second drawing.
"""

import html
import json
import math
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from engine.errors import UserError, problem, shown
from engine.lesson import Chart, Lesson, sweep_arm
from engine.publishing.compare import by_arm
from engine.runs import Run

STATIC_POINTS, INTERACTIVE_POINTS = 100, 300  # a line; more widens no page's knowledge and every page's download
STATIC_WIDTHS = {"wide": 640, "narrow": 340}  # px; a wide one shrunk to a phone would have letters of 5 px
HEIGHT = 300
MEAN = -1  # in the seed column: the mean over seeds. Not 0: that is a seed
DASHES = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3], [4, 4], [12, 4])  # arms are told apart without colour too
LABEL_GAP = 16 / HEIGHT  # between two labels at the lines' ends, as a share of the y axis
LABEL_WIDTH = 110  # px; ends nearer than that have labels that could touch


@dataclass(frozen=True)
class Drawn:
    """A chart in all its forms, ready for a template."""

    title: str
    caption: str
    spec: str  # Vega-Lite JSON, safe inside <script>
    svgs: dict[str, str]  # "wide" and "narrow" -> SVG markup
    columns: list[str]
    rows: list[list[str]]


def draw(lesson: Lesson, chart: Chart, caption: str, runs: list[Run], ident: str) -> Drawn:
    """All forms of one chart of the lesson. UserError if a number in it is not finite."""
    sweep = {role for role, arm in lesson.arms.items() if arm.role == "sweep"}
    runs = [
        run for run in runs if (run.arm in chart.arms if chart.arms else (run.arm in sweep) == (chart.kind == "sweep"))
    ]
    if chart.kind == "sweep":
        data, make = sweep_data(lesson, chart, runs), sweep_chart
        labels = {name: variant.label for name, variant in lesson.spec.sweep.variants.items()}
    else:
        data, make = (
            (curve_data(chart, runs), curve_chart)
            if chart.kind == "curve"
            else (progress_data(chart, runs), progress_chart)
        )
        labels = {role: arm.label for role, arm in lesson.arms.items() if role in by_arm(runs)}
    if data.empty:
        number = lesson.spec.charts.index(chart)
        raise UserError(problem(lesson.where("charts", str(number)), "nothing to draw", got=f"no value of {chart.metric} from step {chart.from_step} on", next="lower from_step, or choose another metric"))  # fmt: skip
    refuse_non_finite(data, runs)
    interactive = make(chart, thinned(data, INTERACTIVE_POINTS), kill_data(runs), labels, "container")
    few = thinned(data, STATIC_POINTS)
    svgs = {
        name: static_svg(make(chart, few, kill_data(runs), labels, width), chart.title, caption, f"{ident}-{name}")
        for name, width in STATIC_WIDTHS.items()
    }
    return Drawn(chart.title, caption, json_for_script(interactive.to_dict()), svgs, *table_of(chart, data, labels))


def curve_data(chart: Chart, runs: list[Run]) -> pd.DataFrame:
    """Columns arm, seed (MEAN for their mean), x, y."""
    rows = [
        (run.arm, run.seed, step, value)
        for run in runs
        for step, value in run.curve(chart.metric)
        # A run that diverged is drawn as far as it had a loss; any other must not have such a value.
        if step >= chart.from_step and (math.isfinite(value) or run.summary.get("diverged_at") is None)
    ]
    data = pd.DataFrame(rows, columns=["arm", "seed", "x", "y"])
    return pd.concat([data, _mean_over_seeds(data)], ignore_index=True)


def sweep_data(lesson: Lesson, chart: Chart, runs: list[Run]) -> pd.DataFrame:
    """Columns arm (the variant), seed (MEAN for their mean), x (the swept value), y (the final metric); diverged runs have no y."""
    sweep = lesson.spec.sweep
    place = {sweep_arm(name, value): (name, value) for name in sweep.variants for value in sweep.values}
    rows = [(place[run.arm][0], run.seed, float(place[run.arm][1]), run.final(chart.metric)) for run in runs]
    data = pd.DataFrame([row for row in rows if row[3] is not None], columns=["arm", "seed", "x", "y"])
    return pd.concat([data, _mean_over_seeds(data)], ignore_index=True)


def _mean_over_seeds(data: pd.DataFrame) -> pd.DataFrame:
    """Rows of seed MEAN, where every seed of the arm still has a value."""
    grouped = data.groupby(["arm", "x"], sort=True)["y"].agg(["mean", "count"]).reset_index()
    seeds = data.groupby("arm")["seed"].nunique()
    whole = grouped[grouped["count"] == grouped["arm"].map(seeds)]
    return whole.rename(columns={"mean": "y"}).drop(columns="count").assign(seed=MEAN)


def progress_data(chart: Chart, runs: list[Run]) -> pd.DataFrame:
    """Where a run stood at which second of its own time: it falls back at every resume. First common seed only."""
    seed = min(set.intersection(*({run.seed for run in of_arm} for of_arm in by_arm(runs).values())))
    corners = ("started", "resumed", "kill", "stopped", "finished")
    rows = []
    for run in runs:
        if run.seed != seed:
            continue
        reached = 0
        rows.append((run.arm, seed, 0.0, reached))
        for event in run.events:
            if event["event"] not in corners:
                continue
            # A start says step 0; until the resume tells where it goes on, the run still stands where it fell.
            reached = reached if event["event"] == "started" else event["step"]
            rows.append((run.arm, seed, event["wall_s"], reached))
    return pd.DataFrame(rows, columns=["arm", "seed", "x", "y"]).assign(order=range(len(rows)))


def kill_data(runs: list[Run]) -> pd.DataFrame:
    """Columns arm, seed, step, wall_s: every SIGKILL."""
    kills = [(run.arm, run.seed, e["step"], e["wall_s"]) for run in runs for e in run.events if e["event"] == "kill"]
    return pd.DataFrame(kills, columns=["arm", "seed", "step", "wall_s"])


def refuse_non_finite(data: pd.DataFrame, runs: list[Run]) -> None:
    bad = data[~data["y"].map(math.isfinite)]
    if len(bad):
        first = bad.iloc[0]
        folder = next(run.folder for run in runs if (run.arm, run.seed) == (first["arm"], first["seed"]))
        raise UserError(problem(
            shown(folder / "metrics.parquet"), "a number that cannot be drawn",
            got=f"{first['y']} at x = {first['x']:g}", expected="finite numbers", next="train the run anew with --fresh, then --record it",
        ))  # fmt: skip


def thinned(data: pd.DataFrame, points: int) -> pd.DataFrame:
    """At most `points` a line: of each stretch the smallest and the largest value stay, so no spike is lost."""
    parts = []
    for _, line in data.groupby(["arm", "seed"], sort=True):
        if len(line) > points:
            stretch = [i * (points // 2) // len(line) for i in range(len(line))]
            grouped = line.reset_index().groupby(stretch)["y"]
            line = line.iloc[sorted({*grouped.idxmin(), *grouped.idxmax()})]
        parts.append(line)
    return pd.concat(parts, ignore_index=True)


def curve_chart(
    chart: Chart, data: pd.DataFrame, kills: pd.DataFrame, labels: dict[str, str], width: Any
) -> alt.LayerChart:
    """Every seed faint, the mean strong, kills as ticks on the x axis, arms named at the lines' ends."""
    x = alt.X(
        "x:Q",
        axis=_few_ticks(width),
        title="step",
        scale=alt.Scale(nice=False, domain=[chart.from_step, float(data["x"].max())]),
    )
    y = alt.Y("y:Q", title=chart.y_label, scale=alt.Scale(domain=_with_room_for_labels(data)))
    style = _arm_style(labels)
    faint = (
        alt.Chart(data[data["seed"] != MEAN])
        .mark_line(strokeWidth=1, opacity=0.45)
        .encode(x=x, y=y, detail="seed:N", **style)
    )
    tooltip = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("x:Q", title="step"),
        alt.Tooltip("y:Q", title=chart.y_label, format=".4f"),
    ]
    strong = (
        alt.Chart(data[data["seed"] == MEAN])
        .mark_line(strokeWidth=2.5, point={"size": 24, "opacity": 0.01})
        .encode(x=x, y=y, tooltip=tooltip, **style)
    )
    marks = alt.Chart(kills[kills["step"] >= chart.from_step].drop_duplicates("step")).mark_rule(opacity=0.5, strokeWidth=1, color="currentColor").encode(
        x="step:Q", y=alt.value(HEIGHT - 12), y2=alt.value(HEIGHT), tooltip=[alt.Tooltip("step:Q", title="SIGKILL at step"), "seed:N"]
    )  # fmt: skip
    return _finish([faint, strong, marks, *_end_labels(data[data["seed"] == MEAN], labels, x, y, width)], width)


def progress_chart(
    chart: Chart, data: pd.DataFrame, kills: pd.DataFrame, labels: dict[str, str], width: Any
) -> alt.LayerChart:
    """Steps done against process time; each fall is the work that a kill cost."""
    x = alt.X(
        "x:Q",
        axis=_few_ticks(width),
        title="process time, seconds",
        scale=alt.Scale(nice=False, domain=[0, float(data["x"].max())]),
    )
    y = alt.Y("y:Q", title=chart.y_label, scale=alt.Scale(domain=_with_room_for_labels(data)))
    style = _arm_style(labels)
    tooltip = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("x:Q", title="seconds", format=".1f"),
        alt.Tooltip("y:Q", title="step"),
    ]
    line = (
        alt.Chart(data)
        .mark_line(strokeWidth=2.5, point={"size": 24, "opacity": 0.01})
        .encode(x=x, y=y, order="order:Q", tooltip=tooltip, **style)
    )
    ours = kills[kills["seed"] == data["seed"].min()].rename(columns={"wall_s": "x", "step": "y"})
    crosses = alt.Chart(ours).mark_point(shape="cross", angle=45, size=90, filled=True, opacity=1).encode(
        x=x, y=y, color=style["color"], tooltip=[alt.Tooltip("arm:N"), alt.Tooltip("y:Q", title="SIGKILL at step")]
    )  # fmt: skip
    return _finish([line, crosses, *_end_labels(data, labels, x, y, width)], width)


def sweep_chart(
    chart: Chart, data: pd.DataFrame, _: pd.DataFrame, labels: dict[str, str], width: Any
) -> alt.LayerChart:
    """The final metric against the swept setting, both sizes of step alike: a logarithmic axis. Seeds as points."""
    x = alt.X(
        "x:Q",
        title=chart.x_label,
        scale=alt.Scale(type="log" if data["x"].min() > 0 else "linear", nice=False),
        axis=alt.Axis(format="~g", values=sorted(set(data["x"]))),
    )
    y = alt.Y("y:Q", title=chart.y_label, scale=alt.Scale(domain=_with_room_for_labels(data)))
    style = _arm_style(labels)
    tooltip = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("x:Q", title=chart.x_label),
        alt.Tooltip("y:Q", title=chart.y_label, format=".4f"),
        "seed:N",
    ]
    points = (
        alt.Chart(data[data["seed"] != MEAN])
        .mark_point(size=28, filled=True, opacity=0.55)
        .encode(x=x, y=y, color=style["color"], tooltip=tooltip)
    )
    mean = data[data["seed"] == MEAN]
    line = alt.Chart(mean).mark_line(strokeWidth=2.5).encode(x=x, y=y, **style)
    return _finish([points, line, *_end_labels(mean, labels, x, y, width)], width)


def _few_ticks(width: Any) -> alt.Axis:
    """Numbers that keep their distance, at the ends too."""
    return alt.Axis(tickCount=5 if width == STATIC_WIDTHS["narrow"] else 9, labelOverlap=True)


def _arm_style(labels: dict[str, str]) -> dict[str, Any]:
    domain = list(labels)
    colors = [f"var(--arm-{number})" for number in range(len(domain))]
    return {
        "color": alt.Color("arm:N", legend=None, scale=alt.Scale(domain=domain, range=colors)),
        "strokeDash": alt.StrokeDash(
            "arm:N", legend=None, scale=alt.Scale(domain=domain, range=list(DASHES[: len(domain)]))
        ),
    }


def _with_room_for_labels(data: pd.DataFrame) -> list[float]:
    """The y range, longer at the end where the arms' names will stand."""
    low, high = float(data["y"].min()), float(data["y"].max())
    span = (high - low) or 1.0
    labels = LABEL_GAP * (data["arm"].nunique() + 1)  # of the whole range, so the range grows by more
    room = span * labels / (1 - labels)
    return [low - room, high + 0.05 * span] if _falls(data) else [low - 0.05 * span, high + room]


def _falls(data: pd.DataFrame) -> bool:
    """Whether the lines go down: then the free place for names is below their ends, else above."""
    ends = data.groupby("arm")["y"].agg(["first", "last"])
    return bool((ends["last"] < ends["first"]).mean() > 0.5)


def _end_labels(data: pd.DataFrame, labels: dict[str, str], x: alt.X, y: alt.Y, width: Any) -> list[alt.Chart]:
    """Each arm's name where its line ends; arms that end on one point share one label, close ones are moved apart."""
    ends = {arm: (float(line["x"].iloc[-1]), float(line["y"].iloc[-1])) for arm, line in data.groupby("arm")}
    sign = -1 if _falls(data) else 1
    low, high = _with_room_for_labels(data)
    near_x = LABEL_WIDTH / (width if isinstance(width, int) else STATIC_WIDTHS["wide"]) * data["x"].max()
    by_point: dict[tuple[float, float], list[str]] = {}
    for role in sorted(ends, key=lambda role: (sign * ends[role][1], list(labels).index(role))):
        by_point.setdefault(ends[role], []).append(role)
    rows: list[dict[str, Any]] = []
    for (at_x, at_y), roles in by_point.items():
        beside = [row["y"] for row in rows if abs(row["x"] - at_x) < near_x]
        place = sign * max([sign * at_y, *(sign * other + LABEL_GAP * (high - low) for other in beside)])
        rows.append({"x": at_x, "y": place, "arm": roles[0], "label": " = ".join(labels[role] for role in roles)})
    base = alt.Chart(pd.DataFrame(rows)).encode(x=x, y=y, text="label:N")
    style = {"align": "right", "dx": -4, "dy": -sign * 11, "fontSize": 13, "fontWeight": 600}
    halo = base.mark_text(**style, stroke="var(--paper)", strokeWidth=4, strokeJoin="round", color="var(--paper)")
    return [halo, base.mark_text(**style).encode(color=_arm_style(labels)["color"])]


def _finish(layers: list[alt.Chart], width: Any) -> alt.LayerChart:
    ink = {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "domainColor": "currentColor",
        "tickColor": "currentColor",
    }
    return (
        alt.layer(*layers)
        .properties(width=width, height=HEIGHT)
        .configure(font="system-ui, sans-serif", background="transparent")
        .configure_axis(
            **ink,
            gridColor="currentColor",
            gridOpacity=0.12,
            domainOpacity=0.4,
            tickOpacity=0.4,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
        )
        .configure_view(stroke=None)
    )


def static_svg(chart: alt.LayerChart, title: str, caption: str, ident: str) -> str:
    """SVG markup that a screen reader announces: vl-convert itself drops title and description."""
    svg = vl_convert.vegalite_to_svg(json.dumps(chart.to_dict(), allow_nan=False))
    names = f'<title id="{ident}-t">{html.escape(title)}</title><desc id="{ident}-d">{html.escape(caption)}</desc>'
    head, _, body = svg.partition(">")
    head = head.replace("<svg", f'<svg role="img" aria-labelledby="{ident}-t {ident}-d"', 1)
    return f"{head}>{names}{body}"


def json_for_script(value: Any) -> str:
    """Strict JSON that no text in it can end the <script> around."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table_of(chart: Chart, data: pd.DataFrame, labels: dict[str, str]) -> tuple[list[str], list[list[str]]]:
    """(column heads, rows) of what the chart shows: the same numbers for those who read tables better than lines."""
    if chart.kind == "progress":
        return ["arm", "seconds", "steps done"], [
            [labels[row.arm], f"{row.x:,.1f}", f"{row.y:,.0f}"] for row in data.itertuples()
        ]
    mean = data[data["seed"] == MEAN].pivot_table(index="x", columns="arm", values="y")
    spread = data[data["seed"] != MEAN].groupby(["x", "arm"])["y"].std().fillna(0).unstack()
    roles = [role for role in labels if role in mean]
    at = "{:g}" if chart.kind == "sweep" else "{:,.0f}"
    several = (
        data[data["seed"] != MEAN]["seed"].nunique() > 1
    )  # one seed shows no noise, and "± 0" would claim there is none

    def cell(x: float, role: str) -> str:
        if pd.isna(mean.loc[x, role]):
            return "diverged"
        return f"{mean.loc[x, role]:.4f}" + (f" ± {spread.loc[x, role]:.4f}" if several else "")

    rows = [[at.format(x), *(cell(x, role) for role in roles)] for x in mean.index]
    return [chart.x_label, *(labels[role] for role in roles)], rows
