"""One lesson and its runs -> its page and the files beside it."""

import io
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.csv

from engine.errors import Collected, UserError, problem, shown
from engine.expressions import signed, written
from engine.lesson import Lesson, Phase, Settings, Site
from engine.publishing.charts import draw_all, seed_strip, small_picture, social_picture
from engine.publishing.choose import LessonRuns
from engine.publishing.compare import Verdict, by_arm, compare, judge, make_scope, prediction_interval
from engine.publishing.curves import COLOURS, SMOOTHING
from engine.publishing.feeds import json_ld
from engine.publishing.lists import TEMPLATES, Card, json_for_script, templates
from engine.publishing.prose import Prose, formula, linked_files, read_prose, render_line, render_prose
from engine.runs import Run

SMOOTHING_FORMULA = r"s_t = \frac{\sum_{k=0}^{t} \beta^k x_{t-k}}{\sum_{k=0}^{t} \beta^k}"


@dataclass(frozen=True)
class LessonPage:
    """A lesson's page, and all that is published beside it."""

    card: Card
    files: dict[str, bytes]  # address below the lesson's own -> content
    links: list[tuple[str, int]]  # of its prose: (target, line of page.md)
    said: list[str]  # what a terminal says of it: whether own runs matched, and the verdict


def lesson_page(site: Site, shown_runs: LessonRuns) -> LessonPage:
    """The whole page. UserError with every problem of prose, texts, claims and charts."""
    lesson, runs = shown_runs.lesson, shown_runs.runs
    scope = make_scope(lesson, shown_runs.profile, runs)
    collected = Collected()
    text = lambda where, value: collected.get(lambda: render_line(value, lesson.where(*where), scope), "")
    captions = [text(("charts", str(n), "caption"), chart.caption) for n, chart in enumerate(lesson.spec.charts)]
    _check_plain_texts(lesson, text)
    texts = {
        key: text((key,), getattr(lesson.spec, key)) for key in ("title", "topic", "question", "result", "teaches")
    }
    charts, picture = collected.get(lambda: draw_all(lesson, captions, runs, shown_runs.mine), ([], {}))
    panels = collected.get(lambda: list(_panels(shown_runs, captions)), [])
    drawn = [*charts, *(one for panel in panels for one in panel["charts"])]
    taken = template_ids() | {one.ident for one in drawn}
    prose = collected.get(
        lambda: render_prose(
            read_prose(lesson.page),
            shown(lesson.page),
            scope,
            taken,
            sample_texts(lesson, runs),
            site.glossary,
            "../../",
        ),
        Prose("", []),
    )
    phase = collected.get(lambda: phase_of(site, lesson), None)
    reference, mine = lesson.spec.reference, mine_against_record(shown_runs)
    context = {
        "lesson": lesson, "texts": texts, "runs": shown_runs, "prose": prose.html, "charts": charts, "panels": panels,
        "reference": reference and {key: text(("reference", key), getattr(reference, key)) for key in ("says", "agrees")},
        "claims": [] if shown_runs.draft else collected.get(lambda: judge(lesson, scope), []),
        "verdicts": [(one, seed_strip(lesson, one, runs, f"seeds-{n}")) for n, one in enumerate(verdicts(lesson, runs))],
        "changes": changes(lesson), "settings": shared_settings(lesson), "provenance": provenance_rows(runs),
        "samples": samples_of(lesson, runs), "mine": mine, "expected": expected_ends(lesson, runs),
        "machine": machine_sentence(lesson, shown_runs.profile, runs), "expected_minutes": minutes_phrase(lesson, runs),
        "downloads": [(folder, [*run.summary["files_sha256"], "summary.json"]) for folder, run in shown_runs.folders()],
        "phase": phase,
        "smoothing": SMOOTHING, "smoothing_formula": _smoothing_formula(),
    }  # fmt: skip
    collected.raise_all()
    card = Card(
        lesson.id, texts["topic"], texts["title"], texts["teaches"], str(lesson.spec.date), True, shown_runs.draft,
        texts["result"], small_picture(picture),
    )  # fmt: skip
    context["json_ld"] = json_for_script(json_ld(site, card))
    html = templates().get_template("lesson.html").render(site=site, root="../../", **context)
    live = {one.ident: one.live for one in drawn if one.live}
    files = linked_files(lesson.folder, prose.links) | {
        "index.html": html.encode(),
        "charts.js": f"window.lessonCharts = {json_for_script(live)};\n".encode(),
        "data/metrics.csv": metrics_csv(runs),
        "picture.png": social_picture(picture, texts["title"], f"Lesson {lesson.id}. {site.title}"),
    }
    own = [f"{one.run.name}: {'matched' if one.matched else 'DID NOT MATCH'} the record: {one.how}" for one in mine]
    whose = "your runs' verdict (a draft: nothing is recorded yet)" if shown_runs.draft else "the record's verdict"
    return LessonPage(card, files, prose.links, [*own, f"{whose}: {verdict_sentence(lesson, runs)}"])


def phase_of(site: Site, lesson: Lesson) -> Phase:
    for phase in site.phases:
        if phase.number == lesson.sort_key[0]:
            return phase
    raise UserError(problem(lesson.where("id"), f"site.toml has no phase {lesson.sort_key[0]}", next="add [[phases]] there, or give the lesson another id"))  # fmt: skip


def _check_plain_texts(lesson: Lesson, text: Callable[[tuple[str, ...], str], str]) -> None:
    """Texts that are shown as they stand obey the rule for digits too."""
    for role, arm in lesson.spec.arms.items():
        text(("arms", role, "label"), arm.label)
    for number, claim in enumerate(lesson.spec.claims):
        text(("claims", str(number), "text"), claim.text)
    for number, chart in enumerate(lesson.spec.charts):
        text(("charts", str(number), "title"), f"{chart.title} {chart.y_label} {chart.x_label}")


@lru_cache
def _smoothing_formula() -> str:
    return formula(SMOOTHING_FORMULA, "block")


def _panels(shown_runs: LessonRuns, captions: list[str]) -> Any:
    """The other recorded profiles: their charts and verdict. Captions speak of the headline's numbers, so they stay there."""
    for profile, runs in shown_runs.panels.items():
        charts, _ = draw_all(shown_runs.lesson, [""] * len(captions), runs, [], f"{profile}-chart")
        yield {
            "profile": profile, "charts": charts, "sentence": verdict_sentence(shown_runs.lesson, runs),
            "machine": machine_sentence(shown_runs.lesson, profile, runs),
        }  # fmt: skip


def machine_sentence(lesson: Lesson, profile: str, runs: list[Run]) -> str:
    """e.g. "profile cpu, on two cores of AMD EPYC (AVX2): about 4 minutes for one seed of every arm"."""
    made_on, device = runs[0].config["provenance"], runs[0].config["settings"].get("device", "cpu")
    if device == "cuda":
        where = f"on {made_on['gpu']}"
    elif lesson.spec.alone:
        where = f"one run after the other on {made_on['processor']}"
    else:
        where = f"on two cores of {made_on['processor']}"
    return f"profile {profile}, {where}: {minutes_phrase(lesson, runs)} for one seed of every arm"


def minutes_phrase(lesson: Lesson, runs: list[Run]) -> str:
    """How long one seed of every arm takes on two cores: side by side, or one after the other for lessons about time."""
    seed = min(run.seed - lesson.arms[run.arm].seed_offset for run in runs)
    seconds = [run.summary["wall_s"] for run in runs if run.seed - lesson.arms[run.arm].seed_offset == seed]
    on_cpu = runs[0].config["settings"].get("device", "cpu") == "cpu"
    total = max(max(seconds), sum(seconds) / 2) if on_cpu and not lesson.spec.alone else sum(seconds)
    minutes = max(1, round(total / 60))
    return f"about {minutes} minute{'s' if minutes > 1 else ''}"


def expected_ends(lesson: Lesson, runs: list[Run]) -> list[tuple[str, str]]:
    """(arm's label, where another seed of it should end)."""
    rows, by_role = [], by_arm(runs)
    for role, arm in lesson.spec.arms.items():
        finals = [run.final(lesson.spec.metric.name) for run in by_role[role]]
        if None in finals:
            rows.append((arm.label, "it diverges" if not any(finals) else "it diverges at some seeds"))
        elif len(finals) > 1:
            low, high = prediction_interval(finals)  # no metric of ours can be negative
            rows.append((arm.label, f"{written(max(0.0, low))} to {written(high)}"))
        else:
            rows.append((arm.label, written(finals[0])))
    return rows


def metrics_csv(runs: list[Run]) -> bytes:
    """Every logged row of every run, the arm and the seed in front."""
    tables = []
    for run in runs:
        names = pa.array([run.arm] * len(run.metrics)), pa.array([run.seed] * len(run.metrics))
        tables.append(run.metrics.add_column(0, "seed", names[1]).add_column(0, "arm", names[0]))
    file = io.BytesIO()
    pyarrow.csv.write_csv(pa.concat_tables(tables), file)
    return file.getvalue()


def samples_of(lesson: Lesson, runs: list[Run]) -> dict[str, Any] | None:
    """What each stated arm wrote at each step that all of them have; of the first seed."""
    chosen = [run for run in runs if run.samples and lesson.arms[run.arm].role != "sweep"]
    first = {role: of_arm[0] for role, of_arm in by_arm(chosen).items()}
    roles = [role for role in lesson.arms if role in first]
    if not roles:
        return None
    texts = {
        role: {(row["step"], row["prompt"]): visible(row["text"]) for row in first[role].samples} for role in roles
    }
    common = set.intersection(*(set(texts[role]) for role in roles))
    settings = lesson.settings[lesson.spec.headline][roles[0]]
    return {
        "steps": sorted({step for step, _ in common}),
        "prompts": [prompt for prompt in settings.sample_prompts if any(prompt == of_text for _, of_text in common)],
        "arms": [{"label": lesson.arms[role].label, "texts": texts[role], "number": list(lesson.arms).index(role) % COLOURS} for role in roles],
        "seed": first[roles[0]].seed, "new_tokens": settings.sample_tokens,
    }  # fmt: skip


def sample_texts(lesson: Lesson, runs: list[Run]) -> list[tuple[str, int, str, str]]:
    """What each arm of the first seed wrote, as prose asks for it; what follows the bar is the model's."""
    first = {role: of_arm[0] for role, of_arm in by_arm(runs).items()}
    return [
        (role, row["step"], row["prompt"], visible(f"{row['prompt']}|{row['text']}"))
        for role in lesson.arms
        if role in first
        for row in first[role].samples
    ]


def visible(text: str) -> str:
    """Model output as text that any page can hold: control characters and halves of surrogate pairs become \ufffd."""
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" else c for c in text)


def verdicts(lesson: Lesson, runs: list[Run]) -> list[Verdict]:
    arms = by_arm(runs)
    return [compare(arms[first], arms[second], lesson.spec.metric.name) for first, second in lesson.spec.compare]


def verdict_sentence(lesson: Lesson, runs: list[Run]) -> str:
    """The headline verdict in one line, e.g. for a terminal."""
    spec, verdict = lesson.spec, verdicts(lesson, runs)[0]
    first, second = (lesson.arms[role].label for role in (verdict.first, verdict.second))
    seeds = ", ".join(map(str, verdict.seeds))
    noise = "one seed shows no noise"
    if verdict.has_interval:
        noise = f"95 % interval {signed(verdict.low)} to {signed(verdict.high)}; {verdict.floors:.1f} noise floors"
    return (
        f"{verdict.word}: {second} minus {first} is {signed(verdict.mean)} {spec.metric.label} "
        f"({noise}; {f'seeds {seeds}' if seeds else 'unpaired'})"
    )


def template_ids() -> set[str]:
    """Ids that the page around the prose uses: a heading of the prose gets another one."""
    around = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in ("base.html", "lesson.html"))
    return set(re.findall(r'\bid="([\w-]+)"', around))


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
