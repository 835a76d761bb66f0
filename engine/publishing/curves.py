"""Runs -> the lines of a chart, as numbers: means over seeds, smoothing, thinning. Nothing here draws.

A frame has one row a point. Its columns: `arm`; `line`, which is "seed" (one recorded run), "mean" (over the seeds) or
"mine" (a run of whoever builds the page); `seed`; one column for each x axis that a reader can choose; `y`; and for
noisy metrics `weak` and `strong`, y smoothed.
"""

import itertools
import math
from dataclasses import dataclass

import pandas as pd

from engine.errors import UserError, problem, shown
from engine.lesson import Chart, Lesson, sweep_arm
from engine.publishing.compare import by_arm
from engine.runs import Run

# Most points a line: more widens no page's knowledge and every page's download. Faint lines are read as a band.
INTERACTIVE_POINTS = {"mean": 200, "mine": 200, "seed": 60}
STATIC_POINTS = {"mean": 80, "mine": 80, "seed": 30}
SMOOTHING = {"weak": 0.9, "strong": 0.98}  # share of the past in each step's average
NOISY = {"train_loss", "grad_norm", "tokens_per_s"}  # one value a step, of one batch: what smoothing is for
STEP_AXES = {
    "step": "step",
    "tokens": "tokens trained on",
    "bytes": "bytes of text trained on",
    "gflops": "billions of operations",
    "wall_s": "seconds of process time",
}
COLOURS = 6  # with as many dashes
KEY = ["arm", "line", "seed"]  # one line


@dataclass(frozen=True)
class Lines:
    """All that one chart shows. `marks` has the columns kind, arm, x (on the first axis), y, and label (of a warmup)."""

    points: pd.DataFrame
    marks: pd.DataFrame
    axes: dict[str, str]  # column -> title; the first is the one that a page opens with
    labels: dict[str, str]  # arm -> its name, in the lesson's order
    colours: dict[str, int]  # arm -> which of the colours is its own

    def only(self, line: str) -> pd.DataFrame:
        return self.points[self.points["line"] == line]


def lines_of(lesson: Lesson, chart: Chart, runs: list[Run], mine: list[Run]) -> Lines:
    """UserError if there is nothing to draw, or a number is not finite."""
    make = {"curve": curve_lines, "progress": progress_lines, "sweep": sweep_lines}[chart.kind]
    lines = make(lesson, chart, drawn_runs(lesson, chart, runs), drawn_runs(lesson, chart, mine))
    if lines.points.empty:
        number = lesson.spec.charts.index(chart)
        raise UserError(problem(
            lesson.where("charts", str(number)), "nothing to draw",
            got=f"no value of {chart.metric} from step {chart.from_step} on", next="lower from_step, or choose another metric",
        ))  # fmt: skip
    return lines


def drawn_runs(lesson: Lesson, chart: Chart, runs: list[Run]) -> list[Run]:
    """Those of the arms that the chart names; if it names none, of all arms of its kind."""
    in_sweep = {role for role, arm in lesson.arms.items() if arm.role == "sweep"}
    if chart.arms:
        return [run for run in runs if run.arm in chart.arms]
    return [run for run in runs if (run.arm in in_sweep) == (chart.kind == "sweep")]


def curve_lines(lesson: Lesson, chart: Chart, runs: list[Run], mine: list[Run]) -> Lines:
    """A metric against steps, tokens, bytes or time."""
    seeds, own = (_curves(chart, some, line) for some, line in ((runs, "seed"), (mine, "mine")))
    points = _together(seeds, over_seeds(seeds, _counts(runs), list(STEP_AXES)), own)
    if chart.metric in NOISY:
        for name, share in SMOOTHING.items():
            points[name] = points.groupby(KEY, sort=False)["y"].transform(lambda y, share=share: smoothed(y, share))
    there = [
        axis for axis in dict.fromkeys((chart.x, *STEP_AXES)) if points[axis].notna().all()
    ]  # older runs know no gflops
    axes = {axis: STEP_AXES[axis] for axis in there}
    marks = _marks_on(there[0], _curve_marks(lesson, chart, runs), points[points["line"] == "mean"])
    return Lines(points, marks, axes, *arms_drawn(lesson, runs))


def arms_drawn(lesson: Lesson, runs: list[Run]) -> tuple[dict[str, str], dict[str, int]]:
    """The drawn arms' labels and colours: an arm keeps its colour in all charts of its lesson."""
    numbers = {role: number % COLOURS for number, role in enumerate(lesson.arms)}
    present = {run.arm for run in runs}
    drawn = [role for role in lesson.arms if role in present]
    return {role: lesson.arms[role].label for role in drawn}, {role: numbers[role] for role in drawn}


def _curves(chart: Chart, runs: list[Run], line: str) -> pd.DataFrame:
    parts = []
    for run in runs:
        table = run.metrics.select([*(axis for axis in STEP_AXES if axis in run.metrics.column_names), chart.metric])
        table = table.filter(table[chart.metric].is_valid())  # pandas could not tell a missing value from a NaN
        table = table.to_pandas().rename(columns={chart.metric: "y"})
        table["gflops"] = table["tokens"] * run.summary.get("flops_per_token", math.nan) / 1e9
        table = table[(table["step"] >= chart.from_step) & (table["step"] <= (chart.to_step or table["step"].max()))]
        if run.summary.get("diverged_at") is not None:  # drawn as far as it had a loss
            table = table[table["y"].map(math.isfinite)]
        for step, value in zip(table["step"], table["y"], strict=True):
            refuse_non_finite(run, value, f"step {step}")
        parts.append(table.assign(arm=run.arm, line=line, seed=run.seed))
    columns = [*STEP_AXES, "y", *KEY]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _together(*frames: pd.DataFrame) -> pd.DataFrame:
    """An empty frame has no types, and would take those of the others away."""
    return pd.concat([frame for frame in frames if len(frame)] or [frames[0]], ignore_index=True)


def _counts(runs: list[Run]) -> dict[str, int]:
    return {arm: len(of_arm) for arm, of_arm in by_arm(runs).items()}


def over_seeds(seeds: pd.DataFrame, runs_of: dict[str, int], axes: list[str], at: str = "step") -> pd.DataFrame:
    """The mean line of each arm, where each of its runs (`runs_of` says how many there are) still has a value."""
    if seeds.empty:
        return seeds
    grouped = seeds.groupby(["arm", at], sort=True)
    mean = grouped[[*(axis for axis in axes if axis != at), "y"]].mean().reset_index()
    count = grouped["y"].count().to_numpy()
    wanted = mean["arm"].map(runs_of).to_numpy()
    return mean[count == wanted].assign(line="mean", seed=-1)


def smoothed(values: pd.Series, share: float) -> pd.Series:
    """Exponential moving average, corrected for its start: sum of share^k · value / sum of share^k, k steps back.

    A constant stays constant, and no later value changes an earlier average. (Kingma and Ba 2015, "Adam", section 3,
    corrects the same bias.)
    """
    return values.ewm(alpha=1 - share, adjust=True).mean()


def _curve_marks(lesson: Lesson, chart: Chart, runs: list[Run]) -> pd.DataFrame:
    """Kills, divergence, and where the warmup ends."""
    marks = []
    for run in runs:
        marks += [("kill", run.arm, event["step"], "") for event in run.events if event["event"] == "kill"]  # fmt: skip
        if (step := run.summary.get("diverged_at")) is not None:
            marks.append(("diverged", run.arm, step, ""))
    warmups = {run.arm: lesson.settings[run.config["profile"]][run.arm].warmup for run in runs}
    for end in sorted(set(warmups.values()) - {0}):
        arm = "" if len(set(warmups.values())) == 1 else next(role for role, warmup in warmups.items() if warmup == end)
        marks.append(("warmup", arm, end, f"warmup ends at step {end}"))
    last = chart.to_step or math.inf
    rows = [(kind, arm, step, None, label) for kind, arm, step, label in marks if chart.from_step <= step <= last]
    return _marks(rows).drop_duplicates(["kind", "arm", "x"])


def _marks_on(axis: str, marks: pd.DataFrame, mean: pd.DataFrame) -> pd.DataFrame:
    """Marks know their step; on another axis they stand where their arm's mean line was at that step. page.js does the same."""
    if axis == "step" or marks.empty or mean.empty:
        return marks

    def place(mark: pd.Series) -> float:
        line = mean[mean["arm"] == mark["arm"]] if (mean["arm"] == mark["arm"]).any() else mean
        return float(line.loc[(line["step"] - mark["x"]).abs().idxmin(), axis])

    return marks.assign(x=marks.apply(place, axis=1))


def _marks(rows: list[tuple]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["kind", "arm", "x", "y", "label"])


def progress_lines(lesson: Lesson, chart: Chart, runs: list[Run], mine: list[Run]) -> Lines:
    """Where a run stood at which second of its own time: it falls back at every resume. First common seed only."""
    seeds = set.intersection(*({run.seed for run in of_arm} for of_arm in by_arm(runs).values())) if runs else set()
    if not seeds:
        number = lesson.spec.charts.index(chart)
        raise UserError(problem(lesson.where("charts", str(number)), "its arms share no seed, and progress is that of one seed", next="choose another kind"))  # fmt: skip
    seed = min(seeds)
    rows, marks = [], []
    for line, some in (("mean", runs), ("mine", mine)):
        for run in some:
            if run.seed == seed:
                path = _progress(run)
                rows += [(run.arm, line, seed, wall_s, step) for wall_s, step in path]
                kills = [event for event in run.events if event["event"] == "kill"] if line == "mean" else []
                marks += [("fall", run.arm, e["wall_s"], e["step"], "") for e in kills]
    points = pd.DataFrame(rows, columns=[*KEY, "wall_s", "y"])
    return Lines(points, _marks(marks), {"wall_s": STEP_AXES["wall_s"]}, *arms_drawn(lesson, runs))


def _progress(run: Run) -> list[tuple[float, int]]:
    """(seconds, steps done) at each corner of the run's way."""
    corners, reached = [(0.0, 0)], 0
    for event in run.events:
        if event["event"] in ("started", "resumed", "kill", "stopped", "finished"):
            # A start says step 0; until the resume tells where it goes on, the run still stands where it fell.
            reached = reached if event["event"] == "started" else event["step"]
            corners.append((event["wall_s"], reached))
    return corners


def sweep_lines(lesson: Lesson, chart: Chart, runs: list[Run], mine: list[Run]) -> Lines:
    """The final metric against the swept value; the arms are the variants. A diverged run has no metric, but a mark."""
    sweep = lesson.spec.sweep
    place = {sweep_arm(name, value): (name, float(value)) for name in sweep.variants for value in sweep.values}
    rows, marks = [], []
    for line, some in (("seed", runs), ("mine", mine)):
        for run in some:
            variant, value = place[run.arm]
            final = run.final(chart.metric)
            if final is not None:
                refuse_non_finite(run, final, "the end")
                rows.append((variant, line, run.seed, value, final))
            elif line == "seed":
                marks.append(("diverged", variant, value, None, ""))
    points = pd.DataFrame(rows, columns=[*KEY, "value", "y"])
    seeds = points[points["line"] == "seed"]
    mean = over_seeds(seeds, seeds.groupby("arm")["seed"].nunique().to_dict(), [], at="value")
    labels = {name: variant.label for name, variant in sweep.variants.items()}
    colours = {name: number % COLOURS for number, name in enumerate(labels)}
    return Lines(_together(points, mean), _marks(marks), {"value": chart.x_label}, labels, colours)


def refuse_non_finite(run: Run, value: float, where: str) -> None:
    if not math.isfinite(value):
        raise UserError(problem(
            shown(run.folder / "metrics.parquet"), "a number that cannot be drawn", got=f"{value} at {where}",
            expected="finite numbers", next="train the run anew with --fresh, then --record it",
        ))  # fmt: skip


def thinned(points: pd.DataFrame, most: dict[str, int]) -> pd.DataFrame:
    """At most so many points a line: both ends, and of each stretch the smallest and the largest value, so no spike is lost."""
    parts = []
    for (_, line, _), part in points.groupby(KEY, sort=True):
        limit = most[line]
        if len(part) > limit:
            y, count = part["y"].to_numpy(), limit // 2 - 1
            edges = [number * len(part) // count for number in range(count + 1)]
            stretches = list(itertools.pairwise(edges))
            kept = {0, len(part) - 1}  # a line ends where its run ended
            kept |= {start + y[start:end].argmin() for start, end in stretches}
            kept |= {start + y[start:end].argmax() for start, end in stretches}
            part = part.iloc[sorted(kept)]
        parts.append(part)
    return pd.concat(parts, ignore_index=True)
