"""What a page was made from, as one hash; and rendered lessons, kept under it.

The hash is over the content of everything: prose, spec, runs, templates, our own source, the versions of the packages.
Modification times are not asked: git sets them as it likes.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import platform
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from engine.cache import CACHE
from engine.lesson import Lesson, Site
from engine.publishing.lists import TEMPLATES, Card

ENGINE = Path(__file__).parents[1]
PACKAGES = (
    "altair", "vl-convert-python", "pandas", "pyarrow", "jinja2", "markupsafe", "markdown-it-py", "mdit-py-plugins", "pygments",
    "latex2mathml", "pydantic", "narwhals",
)  # fmt: skip
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
        """Whole or not at all; other versions of the same lesson are forgotten."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            for address, content in contents.items():
                path = aside / address
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            (aside / "rendered.json").write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")
            for old in folder.parent.iterdir():
                if old not in (folder, aside) and len(old.name) == len(
                    folder.name
                ):  # not what another build is writing
                    shutil.rmtree(old, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return dataclasses.replace(self, folder=str(folder))


def lesson_folder(site: Site, lesson: Lesson, runs_folder: Path, with_local: bool) -> Path:
    """Where a rendered lesson is kept: one place a lesson, one name a content."""
    place = _hash(str(lesson.folder.resolve()), str(runs_folder.resolve()))[:20]
    runs = [("runs", runs_folder / lesson.id), ("local", runs_folder / "local" / lesson.id)]
    key = _hash(
        source_hash(), site.model_dump_json(), str(with_local), lesson.folder.name,
        *_files("lesson", lesson.folder, ("*",)), *(line for name, folder in runs for line in _files(name, folder, PUBLISHED)),
    )  # fmt: skip
    return CACHE / "pages" / place / key[:40]


def everything(site: Site, lessons_folder: Path, runs_folder: Path, with_local: set[str]) -> str:
    """The hash of all that a whole site depends on."""
    return _hash(
        source_hash(), site.model_dump_json(), ",".join(sorted(with_local)),
        *_files("lessons", lessons_folder, ("*",)), *_files("runs", runs_folder, PUBLISHED),
    )  # fmt: skip


@functools.cache
def source_hash() -> str:
    sources = [*ENGINE.glob("*.py"), *(ENGINE / "publishing").glob("*.py"), *TEMPLATES.iterdir()]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    return _hash(platform.python_version(), *versions, *(f"{path.name} {_file_hash(path)}" for path in sorted(sources)))


def _files(name: str, folder: Path, patterns: Iterable[str]) -> list[str]:
    """A line a file: where it is below the folder, and the hash of its content."""
    paths = {
        path
        for pattern in patterns
        for path in folder.rglob(pattern)
        if path.is_file() and "checkpoints" not in path.parts
    }
    return [f"{name}/{path.relative_to(folder).as_posix()} {_file_hash(path)}" for path in sorted(paths)]


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Built:
    """What an output folder was last built from, and with which content: nothing is done twice for nothing."""

    def __init__(self, out: Path) -> None:
        self._path = CACHE / "pages" / f"built-{_hash(str(out.resolve()))[:20]}.json"

    def unchanged(self, key: str, out: Path) -> dict[str, Any] | None:
        """What was said of the last build, if it was of the same key and its output still is what it was."""
        try:
            last = json.loads(self._path.read_text(encoding="utf-8"))
            same = last["key"] == key and last["files"] == files_of(out)
        except (OSError, ValueError, KeyError):
            return None
        return last["said"] if same else None

    def remember(self, key: str, out: Path, said: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"key": key, "files": files_of(out), "said": said}), encoding="utf-8")


def files_of(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): _file_hash(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }
