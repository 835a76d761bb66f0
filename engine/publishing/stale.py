"""What a page was made from, as one hash; and rendered lessons, kept under it.

The hash is over the content of everything: prose, spec, runs, templates, our own source, the versions of the packages.
Modification times are not asked: git sets them as it likes.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import platform
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from engine.cache import CACHE
from engine.errors import UserError, problem, shown
from engine.lesson import Lesson, Site, marked_terms
from engine.publishing.lists import TEMPLATES, Card

ENGINE = Path(__file__).parents[1]
PACKAGES = (
    "altair", "vl-convert-python", "pandas", "pyarrow", "jinja2", "markupsafe", "markdown-it-py", "mdit-py-plugins", "pygments",
    "latex2mathml", "pydantic", "narwhals", "pagefind-bin",
)  # fmt: skip
KEPT_S = 24 * 3600  # seconds that a page which is no longer right is kept
PUBLISHED = ("config.json", "summary.json", "*.parquet")  # of a run folder: all that a page can depend on


@dataclass(frozen=True)
class Rendered:
    """A lesson, checked and rendered: what it says of itself, and its files in the cache."""

    card: Card
    files: dict[str, str]  # address below the lesson's own -> sha256 of the content
    downloads: dict[str, str]  # address below the lesson's own -> path of the file, below the runs' folder
    links: list[tuple[str, int]]  # of the prose: (target, line of page.md)
    notices: list[str]
    said: list[str]
    runs: int
    ids: list[str]  # of its page
    targets: list[str]  # every href and src of its page
    folder: str = ""  # where the files are

    def content(self, address: str) -> bytes:
        return (Path(self.folder) / address).read_bytes()

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """None if it is not there, or not whole: then it is rendered anew."""
        try:
            raw = json.loads((folder / "rendered.json").read_text(encoding="utf-8"))
            self = cls(
                **raw
                | {"card": Card(**raw["card"]), "links": [tuple(link) for link in raw["links"]], "folder": str(folder)}
            )
            whole = all(hashlib.sha256(self.content(address)).hexdigest() == sha for address, sha in self.files.items())
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return self if whole else None

    def store(self, folder: Path, contents: dict[str, bytes]) -> Self:
        """Whole or not at all; what the same lesson was long ago is forgotten."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            for address, content in contents.items():
                path = aside / address
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            (aside / "rendered.json").write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")
            for old in folder.parent.iterdir():
                if (
                    old != folder and time.time() - old.stat().st_mtime > KEPT_S
                ):  # a younger one may be read by another build
                    shutil.rmtree(old, ignore_errors=True)
            if self.load(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # another build was faster: its result is the same
                aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return dataclasses.replace(self, folder=str(folder))


class Contents:
    """The hash of every file that a site depends on, each read once."""

    def __init__(self, lessons_folder: Path, runs_folder: Path) -> None:
        self._roots = [
            (lessons_folder, _by_folder(_hashes(lessons_folder, ("*",)))),
            (runs_folder, _by_folder(_hashes(runs_folder, PUBLISHED))),
        ]

    def everything(self, site: Site, with_local: set[str]) -> str:
        """The hash of all that a whole site depends on."""
        lines = [line for _, folders in self._roots for lines in folders.values() for line in lines]
        return _hash(source_hash(), site.model_dump_json(), ",".join(sorted(with_local)), *lines)

    def lesson_folder(self, site: Site, lesson: Lesson, with_local: bool) -> Path:
        """Where a rendered lesson is kept: one place a lesson, one name a content."""
        (lessons, of_lessons), (runs, of_runs) = self._roots
        place = _hash(str(lesson.folder.resolve()), str(runs.resolve()))[:20]
        own = [(of_lessons, lesson.folder.relative_to(lessons)), *((of_runs, folder) for folder in _of(lesson))]
        lines = [line for folders, folder in own for line in folders.get(folder, ())]
        terms = {
            key: site.glossary.get(key)
            for key in sorted(marked_terms(lesson.page.read_text(encoding="utf-8", errors="replace")))
        }
        about = site.model_copy(update={"glossary": {key: term for key, term in terms.items() if term}})
        key = _hash(source_hash(), about.model_dump_json(), str(with_local), *lines)
        return CACHE / "pages" / place / key[:40]

    def refuse_changed(self, lessons: list[Lesson], rendered: list[Path]) -> None:
        """UserError if a file of these lessons changed while they were rendered: the result would be kept under a wrong name."""
        (lessons_folder, of_lessons), (runs_folder, of_runs) = self._roots
        changed: set[str] = set()
        for lesson in lessons:
            changed |= _changed(of_lessons, lessons_folder, lesson.folder.relative_to(lessons_folder), ("*",))
            for folder in _of(lesson):
                changed |= _changed(of_runs, runs_folder, folder, PUBLISHED)
        if changed:
            for folder in rendered:
                shutil.rmtree(folder, ignore_errors=True)
            where = ", ".join(sorted(changed))
            raise UserError(problem(where, "changed while the site was built", next="run the same command again"))


def _by_folder(hashes: dict[str, str]) -> dict[Path, list[str]]:
    """The folder of a lesson or of its runs -> a line a file: its place and its hash."""
    folders: dict[Path, list[str]] = {}
    for name, sha in hashes.items():
        parts = name.split("/")
        folder = Path("local", parts[1]) if parts[0] == "local" and len(parts) > 1 else Path(parts[0])
        folders.setdefault(folder, []).append(f"{name} {sha}")
    return folders


def _changed(folders: dict[Path, list[str]], root: Path, folder: Path, patterns: Iterable[str]) -> set[str]:
    """The files below a folder that are no longer what they were hashed as."""
    now = {f"{folder.as_posix()}/{name} {sha}" for name, sha in _hashes(root / folder, patterns).items()}
    return {shown(root / line.rpartition(" ")[0]) for line in now ^ set(folders.get(folder, ()))}


def _of(lesson: Lesson) -> tuple[Path, Path]:
    """Where a lesson's runs are, below the runs' folder."""
    return Path(lesson.id), Path("local") / lesson.id


@functools.cache
def source_hash() -> str:
    sources = [*ENGINE.glob("*.py"), *(ENGINE / "publishing").glob("*.py"), *TEMPLATES.iterdir()]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    return _hash(platform.python_version(), *versions, *(f"{path.name} {_file_hash(path)}" for path in sorted(sources)))


def _hashes(folder: Path, patterns: Iterable[str]) -> dict[str, str]:
    """Place below the folder -> hash of the content."""
    paths = {path for pattern in patterns for path in folder.rglob(pattern) if path.is_file()}
    return {path.relative_to(folder).as_posix(): _file_hash(path) for path in sorted(paths)}


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Built:
    """What an output folder was last built from, and with which content: nothing is done twice for nothing."""

    def __init__(self, out: Path) -> None:
        self._path = CACHE / "pages" / f"built-{_hash(str(out.resolve()))[:20]}.json"
        self.key, self.files, self.lessons, self.said = "", {}, {}, {}
        try:
            last = json.loads(self._path.read_text(encoding="utf-8"))
            if last["files"] == _hashes(out, ("*",)):  # else somebody changed it, and all is written anew
                self.key, self.files, self.lessons, self.said = (
                    last[name] for name in ("key", "files", "lessons", "said")
                )
        except (OSError, ValueError, KeyError):
            pass

    def remember(self, key: str, files: dict[str, str], lessons: dict[str, str], said: dict[str, Any]) -> None:
        """`files`: address -> hash of what was written. `lessons`: id -> what its folder was written from."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        what = {"key": key, "files": files, "lessons": lessons, "said": said}
        self._path.write_text(json.dumps(what), encoding="utf-8")
