"""The one exception for what a user can mend. `assert` and ordinary exceptions are for our own mistakes.

A message says where, what is wrong, what was got, what was expected and what to type next:

    lessons/1.7-checkpointing/lesson.toml:12 base.bacth: unknown key
      got:      bacth
      expected: batch
      next:     rename the key
"""

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class UserError(Exception):
    """One or more problems, each made by `problem`; all that were found are reported at once."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


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


def problem(where: object, what: str, *, got: object = None, expected: object = None, next: str = "") -> str:
    """One problem as text; the parts that say nothing are left out."""
    lines = [f"{where}: {what}"]
    for name, value in (("got", got), ("expected", expected), ("next", next)):
        if value not in (None, ""):
            lines.append(f"  {name + ':':<9} {value}")
    return "\n".join(lines)


def nearest(word: str, known: list[str] | tuple[str, ...]) -> str:
    """The known words to show beside an unknown one: the likely ones first, or all of them if none is close."""
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    return " or ".join(close) if close else "one of " + ", ".join(sorted(known)) if known else "nothing is known here"


def shown(path: Path | str) -> str:
    """A path as a person would type it: relative when it lies under the current folder."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def disk_problem(error: OSError) -> str:
    """A full disk or a missing permission, said like any other problem."""
    where = shown(error.filename) if error.filename else "this disk"
    return problem(
        where,
        "cannot be read or written",
        got=error.strerror,
        next="make room or allow access there, then run the same command again",
    )
