"""One lesson and its runs -> the HTML of its page; and the home page from all of them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from engine.errors import UserError, shown
from engine.expressions import FORMATS
from engine.lesson import Lesson, Settings, Site
from engine.publishing.charts import Drawn, draw
from engine.publishing.compare import Verdict, by_arm, compare, judge, make_scope, prediction_interval
from engine.publishing.prose import Prose, render_line, render_prose
from engine.runs import Run

TEMPLATES = Path(__file__).parents[2] / "site_templates"


@dataclass(frozen=True)
class Page:
    """A page of the site: its address below the root, e.g. "lessons/1.7/index.html", its HTML, where its links came from."""

    address: str
    html: str
    source: Path
    links: list[tuple[str, int]]  # of its prose: (target, line of source)
    result: str = ""  # a lesson's result sentence, for the home page


@dataclass(frozen=True)
class LessonRuns:
    """A lesson with the runs that its page shows."""

    lesson: Lesson
    profile: str
    runs: list[Run]  # of the headline profile
    draft: bool  # nothing is recorded: the runs are local ones
    mine: list[Run]  # local runs beside recorded ones


def address_of(lesson: Lesson) -> str:
    """Where a lesson lives: by its id alone, so that a new title moves nothing."""
    return f"lessons/{lesson.id}/index.html"


def templates() -> jinja2.Environment:
    # autoescape=True and not select_autoescape(): that one skips names such as page.html.j2.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )  # fmt: skip
    environment.filters |= {name: written for name, written in FORMATS.items()}
    return environment


def lesson_page(site: Site, shown_runs: LessonRuns, environment: jinja2.Environment) -> Page:
    """The whole page. UserError with every problem of prose, texts, claims and charts."""
    lesson, runs = shown_runs.lesson, shown_runs.runs
    scope = make_scope(lesson, shown_runs.profile, runs)
    collected = Collected()
    text = lambda where, value: collected.get(lambda: render_line(value, lesson.where(*where), scope), "")
    prose = collected.get(
        lambda: render_prose(lesson.page.read_text(encoding="utf-8"), shown(lesson.page), scope, template_ids()),
        Prose("", []),
    )
    claims = [] if shown_runs.draft else collected.get(lambda: judge(lesson, scope), [])
    captions = [
        text(("charts", str(number), "caption"), chart.caption) for number, chart in enumerate(lesson.spec.charts)
    ]
    # Texts that are shown as they stand obey the rule for digits too.
    for role, arm in lesson.spec.arms.items():
        text(("arms", role, "label"), arm.label)
    for number, claim in enumerate(lesson.spec.claims):
        text(("claims", str(number), "text"), claim.text)
    for number, chart in enumerate(lesson.spec.charts):
        text(("charts", str(number), "title"), f"{chart.title} {chart.y_label} {chart.x_label}")
    reference = lesson.spec.reference
    context = {
        "lesson": lesson,
        "texts": {
            key: text((key,), getattr(lesson.spec, key)) for key in ("title", "topic", "question", "result", "teaches")
        },
        "reference": reference
        and {
            "says": text(("reference", "says"), reference.says),
            "agrees": text(("reference", "agrees"), reference.agrees),
        },
        "prose": prose.html,
        "claims": claims,
        "verdicts": verdicts(shown_runs),
        "charts": collected.get(lambda: _draw_all(lesson, captions, runs), []),
        "changes": changes(lesson),
        "settings": shared_settings(lesson),
        "provenance": provenance_rows(runs),
        "runs": shown_runs,
        "arms": by_arm(runs),
        "mine": mine_against_record(shown_runs),
        "seconds": sum(run.summary["wall_s"] for run in runs if run.name in default_runs(shown_runs)),
    }
    collected.raise_all()
    html = environment.get_template("lesson.html").render(site=site, root="../../", **context)
    return Page(address_of(lesson), html, lesson.page, prose.links, context["texts"]["result"])


def verdicts(shown_runs: LessonRuns) -> list[Verdict]:
    arms, spec = by_arm(shown_runs.runs), shown_runs.lesson.spec
    return [compare(arms[first], arms[second], spec.metric.name) for first, second in spec.compare]


def verdict_sentence(shown_runs: LessonRuns) -> str:
    """The headline verdict in one line, e.g. for a terminal."""
    spec, verdict = shown_runs.lesson.spec, verdicts(shown_runs)[0]
    first, second = (shown_runs.lesson.arms[role].label for role in (verdict.first, verdict.second))
    number = lambda value: f"{value:+,.4g}"
    seeds = ", ".join(map(str, verdict.seeds))
    noise = "one seed shows no noise"
    if verdict.has_interval:
        noise = f"95 % interval {number(verdict.low)} to {number(verdict.high)}; {verdict.floors:.1f} noise floors"
    return (
        f"{verdict.word}: {second} minus {first} is {number(verdict.mean)} {spec.metric.label} "
        f"({noise}; {f'seeds {seeds}' if seeds else 'unpaired'})"
    )


def template_ids() -> set[str]:
    """Ids that the page around the prose uses: a heading of the prose gets another one."""
    return set(re.findall(r'\bid="([\w-]+)"', (TEMPLATES / "lesson.html").read_text(encoding="utf-8")))


def _draw_all(lesson: Lesson, captions: list[str], runs: list[Run]) -> list[Drawn]:
    return [
        draw(lesson, chart, captions[number], runs, f"chart-{number}")
        for number, chart in enumerate(lesson.spec.charts)
    ]


class Collected:
    """Problems of several steps, raised together at the end."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def get(self, make: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return make()
        except UserError as error:
            self.problems.extend(error.problems)
            return otherwise

    def raise_all(self) -> None:
        if self.problems:
            raise UserError(*dict.fromkeys(self.problems))


def default_runs(shown_runs: LessonRuns) -> set[str]:
    """The names of the runs that `--run` trains when nothing else is asked for."""
    lesson = shown_runs.lesson
    return {config.name for config in lesson.runs(shown_runs.profile, lesson.spec.seeds[:1], list(lesson.arms))}


def changes(lesson: Lesson) -> list[dict[str, Any]]:
    """The one change as a table: each setting that differs between the stated arms, its value in each."""
    arms, spec = lesson.settings[lesson.spec.headline], lesson.spec
    rows = [{"key": key, "values": [getattr(arms[role], key) for role in spec.arms]} for key in lesson.changed_settings]
    if "seed" in spec.change:
        shifted = [[seed + arm.seed_offset for seed in spec.seeds] for arm in spec.arms.values()]
        rows.insert(0, {"key": "seed", "values": [", ".join(map(str, seeds)) for seeds in shifted]})
    return rows


def shared_settings(lesson: Lesson) -> list[tuple[str, Any]]:
    first = lesson.settings[lesson.spec.headline][lesson.pair[0]]
    return [(key, getattr(first, key)) for key in Settings.model_fields if key not in lesson.changed_settings]


def provenance_rows(runs: list[Run]) -> list[tuple[str, str]]:
    """What computed these runs; where runs differ, every value is named."""
    of_config = lambda *keys: _distinct(runs, lambda run: _dig(run.config, keys))
    commits = [commit for run in runs for commit in run.summary["commits"]]
    inexact = [f"{run.name}: {change}" for run in runs for change in run.summary["resumed_inexactly"]]
    days = sorted({run.summary["finished"][:10] for run in runs})
    rows = [
        ("git commit", "; ".join(dict.fromkeys(commits))),
        (
            "settings (sha256)",
            "; ".join(f"{arm} {of_arm[0].config['settings_sha256'][:12]}" for arm, of_arm in by_arm(runs).items()),
        ),
        ("data (sha256)", of_config("data_sha256")),
        ("torch", of_config("provenance", "torch")),
        ("Python", of_config("provenance", "python")),
        ("processor", of_config("provenance", "processor")),
        ("GPU", of_config("provenance", "gpu")),
        ("threads an arm", of_config("provenance", "threads")),
        ("precision", _distinct(runs, lambda run: run.summary.get("precision"))),
        ("date", " to ".join(dict.fromkeys((days[0], days[-1])))),
        ("process time, all runs", f"{sum(run.summary['wall_s'] for run in runs):,.0f} s"),
        ("resumed on another machine", "; ".join(inexact)),
    ]
    return [(name, value) for name, value in rows if value]


def _dig(config: dict[str, Any], keys: tuple[str, ...]) -> Any:
    for key in keys:
        config = config[key]
    return config


def _distinct(runs: list[Run], value_of: Callable[[Run], Any]) -> str:
    return "; ".join(dict.fromkeys(str(value_of(run)) for run in runs if value_of(run) is not None))


@dataclass(frozen=True)
class Mine:
    """One local run against the record."""

    run: Run
    matched: bool
    how: str  # e.g. "the same weights, to the last bit"


def mine_against_record(shown_runs: LessonRuns) -> list[Mine]:
    """Whether each local run matches: equal weights where machine and torch are those of the record, else inside its interval."""
    return [_match(run, [one for one in shown_runs.runs if one.arm == run.arm]) for run in shown_runs.mine]


def _match(run: Run, recorded: list[Run]) -> Mine:
    twin = next((one for one in recorded if one.seed == run.seed), None)
    if twin and run.summary["weights_sha256"] == twin.summary["weights_sha256"]:
        return Mine(run, True, "the same weights, to the last bit")
    if twin and run.fingerprint == twin.fingerprint:
        return Mine(run, False, "other weights than the record, though processor and torch are the same")
    if run.summary["val_loss"] is None or None in [one.summary["val_loss"] for one in recorded]:
        same = all(one.summary["val_loss"] is None for one in (run, *recorded))
        return Mine(
            run,
            same,
            "another machine: it diverged as the record did" if same else "another machine: not both diverged",
        )
    low, high = prediction_interval([one.summary["val_loss"] for one in recorded])
    inside = low <= run.summary["val_loss"] <= high
    place = f"validation loss {run.summary['val_loss']:.3f} is {'inside' if inside else 'outside'} the recorded {low:.3f} to {high:.3f}"
    return Mine(run, inside, f"another machine: {place}")


def home_page(site: Site, lessons: list[tuple[LessonRuns, str]], environment: jinja2.Environment, source: Path) -> Page:
    """The plan by phase, with each published lesson's result sentence."""
    html = environment.get_template("home.html").render(site=site, root="", lessons=lessons)
    return Page("index.html", html, source, [])


def not_found_page(site: Site, environment: jinja2.Environment, source: Path) -> Page:
    """404.html is served at any depth, so it alone links with absolute addresses."""
    return Page(
        "404.html", environment.get_template("404.html").render(site=site, root=site.base_url + "/"), source, []
    )
