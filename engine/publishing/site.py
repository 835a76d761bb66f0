"""Everything -> site/: gather and check all of it, write it aside, swap it in.

Nothing is written before every lesson, run, text, claim and link was found good, so a failed build leaves the old site
as it was, byte by byte.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urldefrag

import vl_convert

from engine.errors import UserError, disk_problem, problem, shown
from engine.lesson import Lesson, Site
from engine.publishing.pages import (
    TEMPLATES,
    Collected,
    LessonRuns,
    Page,
    home_page,
    lesson_page,
    not_found_page,
    templates,
)
from engine.runs import Run, finished_runs, staleness

MARK = ".made-by-lesson-lab"  # an output folder without it holds somebody's own files: never wiped
DOWNLOADS = ("config.json", "summary.json", "metrics.parquet", "events.parquet")


@dataclass
class Gathered:
    """The whole site in memory: pages, files to copy, and what a person should be told."""

    pages: list[Page] = field(default_factory=list)
    files: dict[str, bytes | Path] = field(default_factory=dict)  # address -> content or where to copy it from
    notices: list[str] = field(default_factory=list)
    shown: list[LessonRuns] = field(default_factory=list)


def gather(
    site: Site, lessons: list[Lesson], lessons_folder: Path, runs_folder: Path, *, with_local: set[str]
) -> Gathered:
    """Render and check everything. `with_local` names lessons whose page also shows local runs.

    UserError with all problems of all lessons.
    """
    gathered, collected = Gathered(), Collected()
    environment = templates()
    listed: list[tuple[LessonRuns | None, Lesson, str]] = []
    for lesson in lessons:
        chosen = collected.get(
            lambda lesson=lesson: choose_runs(lesson, runs_folder, lesson.id in with_local, gathered.notices), None
        )
        page = chosen and collected.get(lambda chosen=chosen: lesson_page(site, chosen, environment), None)
        if page is None:
            listed.append((None, lesson, ""))
            continue
        listed.append((chosen, lesson, page.result))
        gathered.pages.append(page)
        gathered.shown.append(chosen)
        for run in chosen.runs:
            gathered.files |= {f"lessons/{lesson.id}/data/{run.name}/{name}": run.folder / name for name in DOWNLOADS}
    collected.raise_all()
    gathered.pages.append(home_page(site, listed, environment, lessons_folder / "site.toml"))
    gathered.pages.append(not_found_page(site, environment, lessons_folder / "site.toml"))
    gathered.files |= assets()
    check_links(gathered, site.base_url)
    return gathered


def choose_runs(lesson: Lesson, runs_folder: Path, with_local: bool, notices: list[str]) -> LessonRuns | None:
    """The recorded runs, else the local ones as a draft, else none. UserError if the record is stale or incomplete."""
    if lesson.spec.status == "announced":
        return None
    profile = lesson.spec.headline
    recorded = finished_runs(runs_folder / lesson.id / profile)
    local_folder = runs_folder / "local" / lesson.id / profile
    local = finished_runs(local_folder) if with_local or not recorded else []
    local = [run for run in local if run.arm in lesson.arms and not staleness(run, lesson.settings[profile][run.arm])]
    if recorded:
        refuse_incomplete_record(lesson, profile, recorded)
        return LessonRuns(lesson, profile, recorded, draft=False, mine=local)
    seeds = set.intersection(
        *({run.seed - arm.seed_offset for run in local if run.arm == role} for role, arm in lesson.arms.items())
    )
    if not seeds:
        notices.append(
            f"lesson {lesson.id} has no page yet: no seed has a finished run of every arm. Train them: python build.py --lesson {lesson.id} --run"
        )
        return None
    return LessonRuns(
        lesson,
        profile,
        [run for run in local if run.seed - lesson.arms[run.arm].seed_offset in seeds],
        draft=True,
        mine=[],
    )


def refuse_incomplete_record(lesson: Lesson, profile: str, recorded: list[Run]) -> None:
    """Every arm and seed of the lesson, nothing else, and none made with other settings."""
    have = {(run.arm, run.seed): run for run in recorded}
    wanted = {(run.arm, run.seed) for run in lesson.runs(profile, lesson.spec.seeds, list(lesson.arms))}
    problems = []
    for arm, seed in sorted(have.keys() - wanted):
        problems.append(
            problem(
                shown(have[arm, seed].folder),
                "a recorded run that the lesson does not have",
                next="delete the folder with git rm -r, or put its arm or seed back into lesson.toml",
            )
        )
    again: list[tuple[str, int]] = sorted(wanted - have.keys())
    if again:
        problems.append(
            problem(
                lesson.where("seeds"),
                "runs are missing from the record",
                got=", ".join(f"{arm}-s{seed}" for arm, seed in again),
                next=refresh_command(lesson, again),
            )
        )
    for key in sorted(have.keys() & wanted):
        changes = staleness(have[key], lesson.settings[profile][key[0]])
        if changes:
            problems.append(
                problem(
                    shown(have[key].folder),
                    "stale: it was made with other settings than the lesson's",
                    got="; ".join(changes),
                    next=refresh_command(lesson, [key]),
                )
            )
    if problems:
        raise UserError(*problems)


def refresh_command(lesson: Lesson, keys: list[tuple[str, int]]) -> str:
    seeds = ",".join(str(seed) for seed in sorted({seed - lesson.arms[arm].seed_offset for arm, seed in keys}))
    arms = sorted({arm for arm, _ in keys})
    arm = f" --arm {arms[0]}" if len(arms) == 1 else ""
    return f"python build.py --lesson {lesson.id} --run --fresh --seeds {seeds}{arm} && python build.py --lesson {lesson.id} --record"


def assets() -> dict[str, bytes]:
    """Stylesheet, our script, and the one copy of Vega for the whole site."""
    files = {f"assets/{name}": (TEMPLATES / name).read_bytes() for name in ("style.css", "page.js")}
    # The bundle is a flat script whose thousand short names would become globals: in a function they stay inside. Of
    # what it hands out we use window.vegaEmbed alone.
    return files | {"assets/vega.js": b"(function () {\n" + vl_convert.javascript_bundle().encode() + b"\n})();\n"}


def only_lesson(gathered: Gathered, lesson: Lesson) -> Gathered:
    """What belongs to one lesson's page, and the assets that it uses."""
    belongs = lambda address: address.startswith((f"lessons/{lesson.id}/", "assets/"))
    return Gathered(
        [page for page in gathered.pages if belongs(page.address)],
        {address: content for address, content in gathered.files.items() if belongs(address)},
    )


class _Links(HTMLParser):
    """Ids and link targets of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id"):
            self.ids.add(str(values["id"]))
        self.targets += [str(values[name]) for name in ("href", "src") if values.get(name) is not None]


def check_links(gathered: Gathered, base_url: str) -> None:
    """Every link within the site leads to a page or file that is there (case-exact), and to an id on it."""
    parsed = {page.address: _Links(page.html) for page in gathered.pages}
    known = parsed.keys() | gathered.files.keys()
    problems = []
    for page in gathered.pages:
        for target in parsed[page.address].targets:
            address, fragment = _resolve(page.address, target, base_url)
            if address is None:
                continue
            if address not in known:
                problems.append(_dead(page, target, "leads to no page or file of the site", address))
            elif fragment and address in parsed and fragment not in parsed[address].ids:
                problems.append(
                    _dead(page, target, "leads to a place that the page does not have", f"#{fragment} on {address}")
                )
    if problems:
        raise UserError(*problems)


def _resolve(page: str, target: str, base_url: str) -> tuple[str | None, str]:
    """(address, fragment); no address for links that leave the site."""
    if target == base_url or target.startswith(base_url + "/"):
        page, target = "index.html", target.removeprefix(base_url).lstrip("/")
    if ":" in target.partition("/")[0] or target.startswith("//"):
        return None, ""
    path, fragment = urldefrag(target)
    if not path:
        return page, unquote(fragment)
    joined = os.path.normpath(PurePosixPath(page).parent / unquote(path))
    folder = path.endswith("/") or joined == "."
    return (str(PurePosixPath(joined) / "index.html") if folder else joined), unquote(fragment)


def _dead(page: Page, target: str, what: str, got: str) -> str:
    line = next((f":{line}" for link, line in page.links if link == target), "")
    return problem(f"{shown(page.source)}{line}", f"the link {target} {what}", got=got, next="mend the link")


def write(gathered: Gathered, out: Path, *, keep_old: bool) -> None:
    """Write the site aside, then swap it in. `keep_old`: what was not gathered now stays as it is in the old site.

    UserError if `out` is not ours or the disk refuses; the old site then stands unchanged.
    """
    refuse_foreign_folder(out)
    aside = Path()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        if keep_old and out.exists():
            shutil.copytree(out, aside, dirs_exist_ok=True)
        for address, content in _contents(gathered):
            path = aside / address
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        _make_readable(aside)
        _swap(aside, out)
    except OSError as error:
        raise UserError(f"{disk_problem(error)}\n  note:     the old site is unchanged") from None
    finally:
        if aside != Path():
            shutil.rmtree(aside, ignore_errors=True)


def _contents(gathered: Gathered) -> Iterator[tuple[str, bytes | Path]]:
    yield MARK, b""
    yield from gathered.files.items()
    for page in gathered.pages:
        yield page.address, page.html.encode("utf-8")


def _make_readable(folder: Path) -> None:
    """A temporary folder is born 0700; a web server is somebody else."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def refuse_foreign_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not (out / MARK).exists():
        raise UserError(problem(shown(out), "this folder holds files that are not ours, so it is not replaced", expected=f"an empty folder, or one with {MARK} in it", next="name another folder with --out DIR"))  # fmt: skip


def _swap(new: Path, out: Path) -> None:
    old = out.with_name(f".{out.name}-old-{os.getpid()}")
    if out.exists():
        os.replace(out, old)
    try:
        os.replace(new, out)
    except OSError:
        if old.exists():
            os.replace(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)
