"""Two sets of runs -> a Verdict; all runs of a lesson -> the scope of its expressions; claims -> held or not.

The verdict is a paired one: both arms of a seed began with the same weights and read the same batches, so their
difference is freed from most of what a seed changes. Student's t interval over the seeds' differences follows
(Student 1908, "The Probable Error of a Mean").
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from engine.errors import UserError, problem
from engine.expressions import Compared, Expression, Measure, Namespace, Scope, sample_sd, shown_value
from engine.lesson import Claim, Lesson, Settings, sweep_arm
from engine.runs import Run

CONFIDENCE = 0.95
PAIRED_BY = {
    "initial_weights_sha256": "initial weights",
    "batch_order_sha256": "batch order",
    "validation_sha256": "validation tokens",
}


@dataclass(frozen=True)
class Verdict:
    """How the second arm differs from the first. All numbers in the metric's unit, second minus first."""

    first: str
    second: str
    metric: str
    seeds: list[int]  # that both arms have; empty where arms differ in nothing but the seed, and nothing can be paired
    differences: list[float]  # one a seed of `seeds`
    mean: float
    low: float  # of the confidence interval; equal to mean with one seed
    high: float
    floor: float  # noise floor: the first arm's standard deviation over seeds; undefined (nan) with one seed
    word: str  # differs | no difference seen | cannot tell | identical
    paired: list[str]  # what was the same in both arms of every seed, proven by hash
    not_paired: list[str]

    @property
    def has_interval(self) -> bool:
        """One seed knows nothing of its noise: no interval, no floor."""
        return not math.isnan(self.floor)

    @property
    def floors(self) -> float:
        """The mean difference in noise floors; infinite where the first arm does not vary."""
        return abs(self.mean) / self.floor if self.floor else math.inf if self.mean else 0.0


def compare(first: list[Run], second: list[Run], metric: str) -> Verdict:
    """Runs of two arms, paired by the seeds that both have; as two independent samples if they share none.

    A run that diverged has an infinite loss.
    """
    ours, theirs = ({run.seed: run for run in runs} for runs in (first, second))
    before, after = ({seed: _final(run, metric) for seed, run in runs.items()} for runs in (ours, theirs))
    seeds = sorted(ours.keys() & theirs.keys())
    differences = [after[seed] - before[seed] for seed in seeds]
    if not all(map(math.isfinite, [*before.values(), *after.values()])):
        mean, low, high = _infinite(differences)
    elif seeds:
        mean, low, high = t_interval(differences)
    else:
        mean, low, high = welch_interval(list(before.values()), list(after.values()))
    floor = sample_sd(list(before.values())) if min(len(before), len(after)) > 1 else math.nan
    # Paired by a fact if both arms have it seed by seed; where no seed is shared, if all runs have one and the same.
    pairs = [(ours[seed], theirs[seed]) for seed in seeds] or [(first[0], run) for run in (*first, *second)]
    same = [key for key in PAIRED_BY if all(a.summary[key] == b.summary[key] for a, b in pairs)]
    return Verdict(
        first[0].arm, second[0].arm, metric, seeds, differences, mean, low, high, floor,
        word=verdict_word(len(seeds) or min(len(before), len(after)), low, high, floor),
        paired=[PAIRED_BY[key] for key in same],
        not_paired=[name for key, name in PAIRED_BY.items() if key not in same],
    )  # fmt: skip


def _final(run: Run, metric: str) -> float:
    value = run.final(metric)
    return math.inf if value is None else value


def _infinite(differences: list[float]) -> tuple[float, float, float]:
    """Where runs diverged: surely worse if that happened in every seed of one arm and in none of the other."""
    if differences and len(set(differences)) == 1:
        return differences[0], differences[0], differences[0]
    return math.nan, -math.inf, math.inf


def verdict_word(count: int, low: float, high: float, floor: float) -> str:
    """One of four words, tried in this order, for `count` seeds:

    cannot tell         one seed shows no noise, so nothing can be held against it
    identical           every difference is exactly 0
    differs             the interval excludes 0
    no difference seen  the interval holds 0 and nothing beyond two noise floors: whatever is there, two single runs of
                        one and the same arm often lie further apart (by 2.8 floors, one time in twenty)
    cannot tell         otherwise: 0 is possible, and so is more than the noise
    """
    if count < 2:
        return "cannot tell"
    if low == high == 0:
        return "identical"
    if low > 0 or high < 0:
        return "differs"
    return "no difference seen" if -2 * floor <= low and high <= 2 * floor else "cannot tell"


def t_interval(values: list[float]) -> tuple[float, float, float]:
    """(mean, low, high) of the 95 % interval for the mean; no width with one value, which knows nothing of its error."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, mean, mean
    half = t_quantile(0.5 + CONFIDENCE / 2, len(values) - 1) * sample_sd(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def welch_interval(first: list[float], second: list[float]) -> tuple[float, float, float]:
    """(mean difference, low, high) of two independent samples, whose noise need not be equal (Welch 1947, Biometrika)."""
    mean = sum(second) / len(second) - sum(first) / len(first)
    if min(len(first), len(second)) < 2:
        return mean, mean, mean
    parts = [sample_sd(values) ** 2 / len(values) for values in (first, second)]
    if not sum(parts):
        return mean, mean, mean
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)
    )
    half = t_quantile(0.5 + CONFIDENCE / 2, freedom) * math.sqrt(sum(parts))
    return mean, mean - half, mean + half


def prediction_interval(values: list[float]) -> tuple[float, float]:
    """Where one more run of the same kind falls with 95 % probability: wider than the mean's interval by its own noise."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return -math.inf, math.inf
    half = t_quantile(0.5 + CONFIDENCE / 2, len(values) - 1) * sample_sd(values) * math.sqrt(1 + 1 / len(values))
    return mean - half, mean + half


@lru_cache
def t_quantile(probability: float, freedom: float) -> float:
    """The value that Student's t with `freedom` degrees stays below with `probability` (0.5 to 1).

    The density is integrated (Simpson's rule) and the bound found by halving: 15 lines instead of scipy's 100 MB in
    the publishing room. Exact to 9 digits up to t = 1,000.
    """
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def below(bound: float) -> float:
        # x = sqrt(n) · tan(angle) turns the long tail into a finite range: density dx = scale · sqrt(n) · cos^(n-1) dangle
        end, parts = math.atan(bound / math.sqrt(freedom)), 400
        heights = [
            math.cos(end * i / parts) ** (freedom - 1) * (1 if i in (0, parts) else 4 if i % 2 else 2)
            for i in range(parts + 1)
        ]
        return 0.5 + scale * math.sqrt(freedom) * sum(heights) * end / parts / 3

    low, high = 0.0, 1_000.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return (low + high) / 2


def by_arm(runs: Iterable[Run]) -> dict[str, list[Run]]:
    arms: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.arm, run.seed)):
        arms.setdefault(run.arm, []).append(run)
    return arms


def make_scope(lesson: Lesson, profile: str, runs: list[Run]) -> Scope:
    """What the lesson's expressions may name: its arms, `settings`, `reference`, `seeds`, and diff(metric, [a, b])."""
    seeds = sorted({run.seed for run in runs})
    single = {seed: _scope_of(lesson, profile, [run for run in runs if run.seed == seed], {}) for seed in seeds}
    return _scope_of(lesson, profile, runs, single)


def _scope_of(lesson: Lesson, profile: str, runs: list[Run], seeds: dict[int, Scope]) -> Scope:
    arms, settings, spec = by_arm(runs), lesson.settings[profile], lesson.spec
    shared = {
        key: getattr(settings[lesson.pair[0]], key)
        for key in Settings.model_fields
        if len({str(getattr(settings[role], key)) for role in spec.arms}) == 1
    }
    of_arm = {role: _arm_names(role, runs_of, settings[role]) for role, runs_of in arms.items()}
    names = {role: names for role, names in of_arm.items() if role in spec.arms}
    names |= {
        "settings": Namespace("the settings that all arms share", shared),
        "reference": Namespace("the reference", spec.reference.figures if spec.reference else {}),
        "seeds": max((len(runs_of) for runs_of in arms.values()), default=0),
    }

    def diff(metric: str, first: str = lesson.pair[0], second: str = lesson.pair[1]) -> Namespace:
        verdict = compare(arms[first], arms[second], metric)
        fields = ("mean", "low", "high", "floor", "floors", "word")
        return Namespace("a difference", {name: getattr(verdict, name) for name in fields})

    def sweep(variant: str, value: float) -> Namespace:
        return of_arm[sweep_arm(variant, value)]

    def best(variant: str) -> Namespace:
        """The swept value with the best mean of the lesson's metric, among those at which no seed diverged."""
        sign = 1 if spec.metric.better == "lower" else -1
        means = {
            value: sum(_final(run, spec.metric.name) for run in arms[sweep_arm(variant, value)])
            for value in spec.sweep.values
        }
        value = min(means, key=lambda value: sign * means[value])
        return Namespace(f"the best of {variant}", {"value": value, "final": sweep(variant, value).fields["final"]})

    return Scope(names, {"diff": diff, "sweep": sweep, "best": best}, seeds)


def _arm_names(role: str, runs: list[Run], settings: Settings) -> Namespace:
    final: dict[str, Any] = {"diverged": sum(run.summary.get("diverged_at") is not None for run in runs)}
    if all(run.summary["val_loss"] is not None for run in runs):
        final["perplexity"] = Measure([math.exp(min(700.0, run.summary["val_loss"])) for run in runs])
    for key in runs[0].summary:
        values = [run.summary.get(key) for run in runs]
        if all(isinstance(value, int | float) for value in values):
            final[key] = Measure(values)
        elif isinstance(values[0], str) and len(set(values)) == 1:
            final[key] = values[0]
    return Namespace(f"arm {role}", {
        "final": Namespace(f"the end of arm {role}", final),
        "settings": Namespace(f"the settings of arm {role}", settings.model_dump() | {"total_steps": settings.total_steps}),
    })  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """A claim and what the runs say of it."""

    claim: Claim
    held: bool
    evidence: list[str]  # e.g. "seed 3: 267 > 27"


def judge(lesson: Lesson, scope: Scope) -> list[Judged]:
    """Every claim with its evidence. UserError naming the numbers of every claim that is false."""
    judged, problems = [], []
    for number, claim in enumerate(lesson.spec.claims):
        where = lesson.where("claims", str(number), "holds")
        held, trace = Expression(claim.holds, where).evidence(scope)
        judged.append(Judged(claim, bool(held), _as_text(trace)))
        if not held:
            failed = "; ".join(_as_text([one for one in trace if not one.held]) or ["it is false"])
            problems.append(problem(
                where, f"the claim is false: {claim.text}", got=failed, expected=claim.holds,
                next="correct the claim and the prose: the runs are what they are",
            ))  # fmt: skip
    if problems:
        raise UserError(*problems)
    return judged


def _as_text(trace: list[Compared]) -> list[str]:
    grouped: dict[int | None, list[str]] = {}
    for one in trace:
        sign = one.sign if one.held else f"is not {one.sign}"
        grouped.setdefault(one.seed, []).append(f"{shown_value(one.left)} {sign} {shown_value(one.right)}")
    return [(f"seed {seed}: " if seed is not None else "") + ", ".join(texts) for seed, texts in grouped.items()]
