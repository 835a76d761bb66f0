"""Which runs a lesson's page shows: the record, else local ones as a draft. A stale or incomplete record is refused."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UserError, problem, shown
from engine.lesson import Lesson
from engine.runs import Run, finished_runs, staleness


@dataclass(frozen=True)
class LessonRuns:
    """A lesson with the runs that its page shows."""

    lesson: Lesson
    profile: str
    runs: list[Run]  # of the headline profile
    draft: bool  # nothing is recorded: the runs are local ones
    mine: list[Run]  # local runs beside recorded ones
    panels: dict[str, list[Run]]  # other profile -> its recorded runs

    def folders(self) -> Iterator[tuple[str, Run]]:
        """(folder below the page's data/, run). The headline's runs had that place first, and keep it."""
        yield from ((run.name, run) for run in self.runs)
        yield from ((f"{profile}/{run.name}", run) for profile, runs in self.panels.items() for run in runs)


def choose_runs(lesson: Lesson, runs_folder: Path, with_local: bool, notices: list[str]) -> LessonRuns | None:
    """None if there is nothing to show. UserError if the record is stale or incomplete."""
    if lesson.spec.status == "announced":
        return None
    profile = lesson.spec.headline
    recorded = finished_runs(runs_folder / lesson.id / profile)
    local = finished_runs(runs_folder / "local" / lesson.id / profile) if with_local or not recorded else []
    local = [run for run in local if run.arm in lesson.arms and not staleness(run, lesson.settings[profile][run.arm])]
    if recorded:
        others = {
            name: finished_runs(runs_folder / lesson.id / name) for name in lesson.spec.profiles if name != profile
        }
        panels = {name: runs for name, runs in others.items() if runs}
        problems = [*_misfits(lesson, profile, recorded), *(text for name, runs in panels.items() for text in _misfits(lesson, name, runs))]  # fmt: skip
        if problems:
            raise UserError(*problems)
        return LessonRuns(lesson, profile, recorded, draft=False, mine=local, panels=panels)
    seeds = set.intersection(
        *({run.seed - arm.seed_offset for run in local if run.arm == role} for role, arm in lesson.arms.items())
    )
    if not seeds:
        notices.append(
            f"lesson {lesson.id} has no page yet: no seed has a finished run of every arm. Train them: python build.py --lesson {lesson.id} --run"
        )
        return None
    complete = [run for run in local if run.seed - lesson.arms[run.arm].seed_offset in seeds]
    return LessonRuns(lesson, profile, complete, draft=True, mine=[], panels={})


def _misfits(lesson: Lesson, profile: str, recorded: list[Run]) -> Iterator[str]:
    """What keeps the record from being every arm and seed of the lesson, nothing else, made with the lesson's settings.

    A profile beside the headline may have fewer seeds: it is shown, and no claim rests on it.
    """
    have = {(run.arm, run.seed): run for run in recorded}
    wanted = {(run.arm, run.seed) for run in lesson.runs(profile, lesson.spec.seeds, list(lesson.arms))}
    for arm, seed in sorted(have.keys() - wanted):
        yield problem(
            shown(have[arm, seed].folder), "a recorded run that the lesson does not have",
            next="delete the folder with git rm -r, or put its arm or seed back into lesson.toml",
        )  # fmt: skip
    again = sorted(wanted - have.keys())
    if profile != lesson.spec.headline:
        seeds = {run.seed - lesson.arms[run.arm].seed_offset for run in recorded if run.arm in lesson.arms}
        again = [(arm, seed) for arm, seed in again if seed - lesson.arms[arm].seed_offset in seeds]
    if again:
        yield problem(
            lesson.where("seeds"), "runs are missing from the record",
            got=", ".join(f"{arm}-s{seed}" for arm, seed in again), next=refresh_command(lesson, profile, again),
        )  # fmt: skip
    for arm, seed in sorted(have.keys() & wanted):
        if changes := staleness(have[arm, seed], lesson.settings[profile][arm]):
            yield problem(
                shown(have[arm, seed].folder), "stale: it was made with other settings than the lesson's",
                got="; ".join(changes), next=refresh_command(lesson, profile, [(arm, seed)]),
            )  # fmt: skip


def refresh_command(lesson: Lesson, profile: str, keys: list[tuple[str, int]]) -> str:
    seeds = ",".join(str(seed) for seed in sorted({seed - lesson.arms[arm].seed_offset for arm, seed in keys}))
    arms = sorted({arm for arm, _ in keys})
    arm = f" --arm {arms[0]}" if len(arms) == 1 else ""
    other = f" --profile {profile}" if profile != lesson.spec.headline else ""
    return f"python build.py --lesson {lesson.id} --run --fresh --seeds {seeds}{arm}{other} && python build.py --lesson {lesson.id} --record{other}"
