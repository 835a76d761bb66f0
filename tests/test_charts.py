"""Runs to lines to charts: nothing is lost by thinning, smoothing is honest, names can be read."""

import itertools
import json
import math

import pandas as pd
import pytest

from engine.lesson import Chart, load_lesson
from engine.publishing import charts, curves
from engine.publishing.charts import draw_all
from engine.publishing.curves import lines_of, smoothed, thinned
from engine.runs import finished_runs


def points(values: list[float], arm: str = "a", line: str = "mean") -> pd.DataFrame:
    return pd.DataFrame({"arm": arm, "line": line, "seed": -1, "step": range(len(values)), "y": values})


def test_a_smoothed_constant_stays_constant():
    assert smoothed(pd.Series([2.5] * 50), 0.98).tolist() == pytest.approx([2.5] * 50)


def test_smoothing_is_the_formula_on_the_page():
    x, share = [3.0, 1.0, 4.0, 1.5, 9.0], 0.9
    by_hand = [
        sum(share**k * x[t - k] for k in range(t + 1)) / sum(share**k for k in range(t + 1)) for t in range(len(x))
    ]
    assert smoothed(pd.Series(x), share).tolist() == pytest.approx(by_hand)
    assert by_hand[0] == x[0]  # the start is not pulled to 0


def test_a_longer_run_does_not_change_its_past():
    values = pd.Series([math.sin(i) for i in range(60)])
    assert smoothed(values[:40], 0.9).tolist() == smoothed(values, 0.9).tolist()[:40]


def test_thinning_keeps_every_spike():
    values = [1.0] * 1000
    values[333], values[777] = 50.0, -50.0
    few = thinned(points(values), {"mean": 100})
    assert len(few) <= 100 and {50.0, -50.0} <= set(few["y"])
    assert few["step"].is_monotonic_increasing
    assert (few["step"].iloc[0], few["step"].iloc[-1]) == (0, 999)  # a line ends where its run ended


def test_smoothing_comes_before_thinning(recorded):
    lesson, chart = with_chart(recorded, metric="train_loss")
    lines = lines_of(lesson, chart, finished_runs(recorded.recorded), [])
    mean = lines.only("mean")
    mean = mean[mean["arm"] == "often"]
    assert smoothed(mean["y"].reset_index(drop=True), 0.9).tolist() == pytest.approx(mean["weak"].tolist())
    few = thinned(lines.points, {"mean": 10, "seed": 10})
    kept = few[(few["line"] == "mean") & (few["arm"] == "often")]
    assert set(kept["weak"]) <= set(mean["weak"])


def test_the_mean_ends_where_the_first_seed_ends():
    seeds = pd.concat(
        [points([1.0, 2.0, 3.0], line="seed").assign(seed=1), points([3.0, 4.0], line="seed").assign(seed=2)]
    )
    assert curves.over_seeds(seeds, {"a": 2}, ["step"])["y"].tolist() == [2.0, 3.0]
    assert curves.over_seeds(seeds, {"a": 3}, ["step"]).empty  # the third run diverged before its first value


def test_curves_of_one_unit_share_their_scales(recorded):
    recorded.edit(recorded.toml, "\n[[claims]]\n", NOISY_AND_BARS)
    lesson = load_lesson(recorded.lesson)
    drawn, _ = draw_all(lesson, [""] * 4, finished_runs(recorded.recorded), [])
    validation, training = drawn[0].live, drawn[2].live
    assert validation["range"] == training["range"] and validation["x"] == training["x"]
    assert drawn[1].live["range"] != training["range"]  # steps are no loss


NOISY_AND_BARS = """
[[charts]]
kind = "curve"
metric = "train_loss"
title = "Training loss"
y_label = "training loss"
caption = "It jumps."

[[charts]]
kind = "bars"
metric = "redone_steps"
title = "Redone"
y_label = "redone steps"
caption = "Longer is worse."

[[claims]]
"""


def test_bars_show_every_arm_with_its_number(recorded):
    recorded.edit(recorded.toml, "\n[[claims]]\n", NOISY_AND_BARS)
    assert recorded.build("--site-only") == 0
    page = (recorded.site / "lessons/1.7/index.html").read_text()
    for run_arm, label in (("rare", "saves rarely"), ("often", "saves often"), ("straight", "never killed")):
        finals = [run.final("redone_steps") for run in finished_runs(recorded.recorded) if run.arm == run_arm]
        assert f">{label}: {sum(finals) / len(finals):,.4g}</text>" in page


def with_chart(content, **keys):
    lesson = load_lesson(content.lesson)
    return lesson, Chart(kind="curve", title="t", y_label="y", caption="c", **keys)


def test_kills_warmup_and_divergence_are_marked(recorded):
    recorded.edit(recorded.toml, "lr = 1e-3", "lr = 1e-3\nwarmup = 5")
    lesson, chart = with_chart(recorded, metric="train_loss")
    runs = finished_runs(recorded.recorded)
    runs[0].summary["diverged_at"] = 17
    marks = lines_of(lesson, chart, runs, []).marks
    assert marks[marks["kind"] == "warmup"]["label"].tolist() == ["warmup ends at step 5"]
    assert (marks[marks["kind"] == "diverged"]["x"].tolist(), runs[0].arm) == ([17], "often")
    kills = {event["step"] for run in runs for event in run.events if event["event"] == "kill"}
    assert set(marks[marks["kind"] == "kill"]["x"]) == kills and kills


def test_a_curve_can_open_against_arithmetic_and_end_early(recorded):
    recorded.edit(recorded.toml, "lr = 1e-3", "lr = 1e-3\nwarmup = 5")
    lesson, chart = with_chart(recorded, metric="train_loss", x="gflops", to_step=16)
    runs = finished_runs(recorded.recorded)
    lines = lines_of(lesson, chart, runs, [])
    assert next(iter(lines.axes)) == "gflops" and lines.points["step"].max() == 16
    per_step = 2 * 32 * runs[0].summary["flops_per_token"] / 1e9
    assert (lines.points["gflops"] / per_step).tolist() == pytest.approx(lines.points["step"].tolist())
    warmup = lines.marks[lines.marks["kind"] == "warmup"]
    assert warmup["x"].tolist() == pytest.approx([5 * per_step])  # where the line is at step 5


def test_a_run_that_diverged_is_drawn_as_far_as_it_had_a_loss(recorded, monkeypatch):
    lesson, chart = with_chart(recorded, metric="train_loss")
    runs = finished_runs(recorded.recorded)
    run = runs[0]
    broken = [math.nan if step > 10 else 5.0 for step in range(len(run.metrics))]
    at = run.metrics.schema.get_field_index("train_loss")
    import pyarrow as pa

    run.__dict__["metrics"] = run.metrics.set_column(at, "train_loss", pa.array(broken, pa.float32()))
    run.summary["diverged_at"] = 11
    seeds = lines_of(lesson, chart, runs, []).only("seed")
    assert seeds[(seeds["arm"] == run.arm) & (seeds["seed"] == run.seed)]["step"].max() == 10


def test_names_at_the_lines_ends_keep_their_distance_and_equal_ends_share_one():
    lines = curves.Lines(
        pd.concat([points([5.0, 1.0], "a"), points([5.0, 1.001], "b"), points([5.0, 1.0], "c"), points([5.0, 4.0], "d")]),
        pd.DataFrame(columns=["kind", "arm", "x", "y", "label"]), {"step": "step"}, {"a": "first", "b": "second", "c": "third", "d": "far"}, {"a": 0, "b": 1, "c": 2, "d": 3},
    )  # fmt: skip
    frame = ((0.0, 1.0), charts._with_room_for_labels(lines.points))
    names = charts._names(lines, frame, 640)
    assert [name["label"] for name in names] == ["far", "second", "first = third"]
    places = sorted(name["y"] for name in names)
    gap = charts.LABEL_GAP * (frame[1][1] - frame[1][0])
    assert all(above - below >= gap * 0.999 for below, above in itertools.pairwise(places))


def test_columns_that_are_a_multiple_of_the_step_are_sent_as_the_factor(recorded):
    lesson, chart = with_chart(recorded)
    runs = finished_runs(recorded.recorded)
    lines = lines_of(lesson, chart, runs, [])
    live = charts._live(chart, lines, ((0.0, 24.0), (0.0, 9.0)), {})
    assert {line["tokens"] for line in live["lines"]} == {2 * 32}
    assert json.dumps(live, allow_nan=False)
    assert [line["arm"] for line in live["lines"] if line["line"] == "mean"] == ["rare", "often", "straight"]
