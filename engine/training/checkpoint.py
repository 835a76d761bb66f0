"""Checkpoints: whole or absent, verified before use, never running code.

A file is named by its step and the hash of its content, e.g. step-00000400-3f9a21c07d5e88b1.pt. It is an ordinary torch
file, so anybody can open it; the hash in the name finds the flipped byte that torch itself loads without a word.
"""

import hashlib
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.errors import UserError, problem, shown
from engine.runs import file_hash, sync_folder

KEEP = 2  # the newest and the one before it: if the newest is damaged, little is lost
HASH_DIGITS = 16  # 64 bits: chance passes damage once in 10^19


@dataclass(frozen=True)
class Saved:
    """One written checkpoint."""

    path: Path
    seconds: float
    bytes: int


def save(folder: Path, step: int, state: dict[str, Any]) -> Saved:
    """Write, flush to disk, rename, flush the folder; then drop all but the KEEP newest. UserError if the disk is full.

    Until the rename the name is temporary, so a kill at any moment leaves the older checkpoints as they were.
    """
    started = time.perf_counter()
    folder.mkdir(exist_ok=True)
    temporary = folder / f"step-{step:08d}.tmp"
    try:
        with temporary.open("wb") as file:
            hashing = _HashingWriter(file.write)
            torch.save(state, hashing)
            file.flush()
            os.fsync(file.fileno())  # without it, a power cut can leave the new name with none of the content
    except (OSError, RuntimeError) as error:  # torch wraps a failed write in RuntimeError
        temporary.unlink(missing_ok=True)
        raise _not_written(folder, step, error) from error
    path = folder / f"step-{step:08d}-{hashing.digest()}.pt"
    os.replace(temporary, path)
    sync_folder(folder)
    for old in newest_first(folder)[KEEP:]:
        old.unlink()
    return Saved(path, time.perf_counter() - started, path.stat().st_size)


def _not_written(folder: Path, step: int, error: Exception) -> UserError:
    before = newest_first(folder)
    kept = f"{before[0].name} is whole, and the run goes on from it" if before else "there is no earlier one"
    cause = next((str(e) for e in (error, error.__cause__, error.__context__) if isinstance(e, OSError)), str(error))
    return UserError(
        problem(
            shown(folder),
            f"the checkpoint of step {step} could not be written; {kept}",
            got=cause,
            next="make room or allow writing there, then run the same command again",
        )
    )


class _HashingWriter:
    """Hashes what passes through: the file need not be read again, nor held in memory."""

    def __init__(self, write: Callable[[bytes], int]) -> None:
        self._write = write
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._write(data)

    def flush(self) -> None:
        """Part of torch's idea of a file; the real file is flushed once, at the end."""

    def digest(self) -> str:
        return self._hash.hexdigest()[:HASH_DIGITS]


def newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.pt"), key=lambda path: int(path.name.split("-")[1]), reverse=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(problem(
            shown(path), "this checkpoint asks to run code, so it is not one of ours",
            expected="tensors, numbers and texts", next="find out where it came from; start over by adding --fresh",
        )) from None  # fmt: skip


def load(folder: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """The state of the newest whole checkpoint, or None if there is none at all. `warn` hears of damaged ones.

    UserError if checkpoints exist and none is whole. weights_only: a file from elsewhere can hold no code to run.
    """
    for leftover in folder.glob("*.tmp"):
        leftover.unlink()  # a kill came between its first byte and its rename
    damaged: list[Path] = []
    for path in newest_first(folder):
        if file_hash(path)[:HASH_DIGITS] == path.stem.split("-")[2]:
            for bad in damaged:
                bad.rename(bad.with_name(bad.name + ".damaged"))  # kept to look at, never counted again
                warn(f"{shown(bad)}: damaged, its content is not what was written; going on from {path.name}")
            return _read(path)
        damaged.append(path)
    if damaged:
        raise UserError(
            problem(
                shown(folder),
                "every checkpoint is damaged",
                got=", ".join(path.name for path in damaged),
                expected="content whose sha256 begins as the file's name says",
                next="restore one from a copy, or start over by adding --fresh",
            )
        )
    return None
