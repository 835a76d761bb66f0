"""The shape of each kind of chart: an Altair chart without its data, as a Vega-Lite spec that charts.py fills.

Altair copies and checks every part of a chart many times over, which takes longer than drawing it, and to import it
takes as long again. So a shape is made once and kept; pages whose shapes are all there never load Altair.
"""

import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from engine.cache import kept
from engine.publishing.stale import source_hash

if TYPE_CHECKING:
    import altair as alt

HEIGHT = 300
STRIP_HEIGHT, PICTURE_SIZE, BAR_HEIGHT = 130, (200, 76), 46  # px
DASHES = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3], [4, 4], [12, 4])  # arms are told apart without colour too
FEW_TICKS = "width < 400 ? 4 : 7"  # calmer, and every number's width is measured, which is most of the drawing's time
PAPER = "var(--paper)"
Arms = tuple[tuple[str, int], ...]  # arm, and which of the colours and dashes is its own


@lru_cache(maxsize=256)
def _kept_shape(name: str, arguments: tuple[Any, ...]) -> bytes:
    key = hashlib.sha256(f"{source_hash()} {name} {arguments!r}".encode()).hexdigest()
    return kept(f"shapes/{key[:40]}.json", lambda: json.dumps(_MAKERS[name](*arguments)).encode())


def shape(name: str, *arguments: Any, **axes: tuple[str, tuple[float, float] | None]) -> dict[str, Any]:
    """A fresh copy of the spec of that shape. `axes` are x and y: the title, and the range where the chart sets it."""
    spec = json.loads(_kept_shape(name, arguments))
    for layer in spec["layer"]:
        for channel, (title, domain) in axes.items():
            encoded = layer["encoding"].get(channel, {})
            if "scale" in encoded:
                encoded["title"] = title
                if domain:
                    encoded["scale"]["domain"] = list(domain)
    return spec


def lines_shape(kind: str, arms: Arms, falls: bool, values: tuple[float, ...]) -> dict[str, Any]:
    """Curves, progress and sweeps. Data: "points" (arm, line, seed, x, y, order), "marks" (kind, arm, x, y, label), "names".

    `values` are those of a sweep.
    """
    import altair as alt

    # Numbers that keep their distance, at the ends too.
    axis = alt.Axis(tickCount=alt.ExprRef(FEW_TICKS), labelOverlap=True)
    scale = alt.Scale(nice=False, domain=[0, 1])
    if values:  # both sizes of step alike
        axis = alt.Axis(format="~r", values=list(values))
        scale = alt.Scale(nice=False, domain=[0, 1], type="log" if values[0] > 0 else "linear")
    x = alt.X("x:Q", axis=axis, scale=scale)
    y = alt.Y("y:Q", axis=alt.Axis(tickCount=5), scale=alt.Scale(nice=False, domain=[0, 1]))
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
    return _finish([seed, mean, mine, *_mark_layers(x, y, style), _name_layer(falls, x, y, style)], 0, HEIGHT)


def _mark_layers(x: "alt.X", y: "alt.Y", style: dict[str, Any]) -> list["alt.Chart"]:
    """Kills tick the x axis, a cross stands where a progress falls or where a loss became infinite, a line ends the warmup."""
    import altair as alt

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


def _name_layer(falls: bool, x: "alt.X", y: "alt.Y", style: dict[str, Any]) -> "alt.Chart":
    """The arms' names at the lines' ends, each with a rim of paper; static_svg puts the rim below the letters."""
    import altair as alt

    names = alt.Chart(alt.NamedData("names"))
    # Before the line's end; beyond it where the end is so far left that the name would leave the chart.
    look = {
        "align": alt.ExprRef("datum.align"),
        "dx": alt.ExprRef("datum.align === 'left' ? 6 : -4"),
        "dy": 11 if falls else -11,
        "fontSize": 13,
        "fontWeight": 600,
    }
    return names.mark_text(**look, stroke=PAPER, strokeWidth=4, strokeJoin="round").encode(
        x=x, y=y, text="label:N", color=style["color"]
    )


def bars_shape(arms: Arms) -> dict[str, Any]:
    """One bar an arm. Data: "bars" (arm, label, y), "points" (arm, y).

    Each arm's name stands above its bar: beside it, long names would leave no room for the bar on a phone.
    """
    import altair as alt

    color = _arm_style(arms)["color"]
    y = alt.Y("arm:N", sort=[arm for arm, _ in arms], axis=None, scale=alt.Scale(paddingInner=0.55, paddingOuter=0.5))
    x = alt.X("y:Q", axis=alt.Axis(tickCount=alt.ExprRef(FEW_TICKS)), scale=alt.Scale(zero=True))
    bars, dots = (alt.Chart(alt.NamedData(name)) for name in ("bars", "points"))
    name = {
        "align": "left",
        "baseline": "bottom",
        "fontSize": 13,
        "fontWeight": 600,
        "dy": -14,
        "color": "currentColor",
    }
    layers = [
        bars.mark_bar(opacity=0.75).encode(x=x, y=y, color=color),
        dots.mark_point(size=22, filled=True, opacity=1, color="currentColor").encode(x=x, y=y),
        bars.mark_text(**name).encode(x=alt.value(0), y=y, text="label:N"),
    ]
    return _finish(layers, 0, BAR_HEIGHT * len(arms) + 14)


def strip_shape(arms: Arms, paired: bool) -> dict[str, Any]:
    """One dot a seed for two arms. Data: "points" (arm, seed, x), "names" (arm, label, first)."""
    import altair as alt

    color = _arm_style(arms)["color"]
    x = alt.X("x:Q", axis=alt.Axis(tickCount=4), scale=alt.Scale(domain=[0, 1], nice=False))
    y = alt.Y("arm:N", sort=[arm for arm, _ in arms], axis=None, scale=alt.Scale(paddingInner=0.5, paddingOuter=0.6))
    points, names = (alt.Chart(alt.NamedData(name)) for name in ("points", "names"))
    layers = [points.mark_point(size=70, filled=True, opacity=0.75).encode(x=x, y=y, color=color)]
    if paired:
        joined = points.mark_line(color="currentColor", opacity=0.3, strokeWidth=1)
        layers.insert(0, joined.encode(x=x, y=y, detail="seed:N"))
    for first, dy in (("true", -16), ("false", 18)):  # outside, where no joining line crosses them
        name = names.transform_filter(f"datum.first == {first}")
        style = {"align": "left", "fontSize": 13, "fontWeight": 600, "dy": dy}
        layers.append(name.mark_text(**style).encode(x=alt.value(0), y=y, text="label:N", color=color))
    return _finish(layers, 0, STRIP_HEIGHT)


def picture_shape(arms: Arms) -> dict[str, Any]:
    """Lines without axes. Data: "points" (arm, x, y, order), x and y from 0 to 1."""
    import altair as alt

    x, y = (axis(f"{name}:Q", axis=None, scale=alt.Scale(domain=[0, 1])) for axis, name in ((alt.X, "x"), (alt.Y, "y")))
    line = alt.Chart(alt.NamedData("points")).mark_line(strokeWidth=2)
    return _finish([line.encode(x=x, y=y, order="order:Q", **_arm_style(arms))], *PICTURE_SIZE)


def _arm_style(arms: Arms) -> dict[str, Any]:
    import altair as alt

    domain = [arm for arm, _ in arms]
    colors = [f"var(--arm-{number})" for _, number in arms]
    dashes = [DASHES[number] for _, number in arms]
    return {
        "color": alt.Color("arm:N", legend=None, scale=alt.Scale(domain=domain, range=colors)),
        "strokeDash": alt.StrokeDash("arm:N", legend=None, scale=alt.Scale(domain=domain, range=dashes)),
    }


def _finish(layers: list["alt.Chart"], width: int, height: int) -> dict[str, Any]:
    import altair as alt

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


_MAKERS = {"lines": lines_shape, "bars": bars_shape, "strip": strip_shape, "picture": picture_shape}
