"""TOML files that people write -> frozen models; a mistake is reported with its file, line and key."""

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.errors import UserError, nearest, problem, shown

Key = tuple[str, ...]
Model = TypeVar("Model", bound=BaseModel)


class Frozen(BaseModel):
    """Unknown keys are errors, types are not bent ("12" is no number), nothing changes after it was read."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def load(toml: Path, model: type[Model]) -> Model:
    """The file as a model. UserError with all problems."""
    return load_with_lines(toml, model)[0]


def load_with_lines(toml: Path, model: type[Model]) -> tuple[Model, dict[Key, int]]:
    """The same, and the line of each key, for what is only found wrong later."""
    raw, lines = read_toml(toml)
    try:
        return model.model_validate(raw), lines
    except ValidationError as error:
        raise UserError(*(spec_problem(toml, lines, detail, model) for detail in error.errors())) from None


def read_toml(toml: Path) -> tuple[dict[str, Any], dict[Key, int]]:
    try:
        text = toml.read_text(encoding="utf-8")
        raw, lines = tomllib.loads(text), _key_lines(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        line = at[1] if at else str(len(text.splitlines()))
        what = str(error).split(" (at ")[0]
        raise UserError(
            problem(f"{shown(toml)}:{line}", "this is not valid TOML", got=what, next="mend the line")
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(problem(shown(toml), "not UTF-8 text", got=str(error), next="save the file as UTF-8")) from None
    except OSError as error:
        raise UserError(
            problem(shown(toml), "cannot be read", got=error.strerror, next="check the file's permissions")
        ) from None
    # An escape such as \u0007 can bring one in; no page may hold it.
    if bad := [
        problem(f"{shown(toml)}:{line_of(lines, key)} {dotted(key)}", "a control character in a text", got=repr(value), next="take it out")
        for key, value in _texts(raw)
        if any(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in value)
    ]:  # fmt: skip
        raise UserError(*bad)
    return raw, lines


def _texts(value: Any, key: Key = ()) -> Iterator[tuple[Key, str]]:
    """Every text in a TOML file, with the key that leads to it."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(inner, (*key, str(name)))


def _key_lines(text: str) -> dict[Key, int]:
    """The line of each key and table: tomllib does not tell. Keys of an array of tables carry its index as text."""
    lines: dict[Key, int] = {}
    table: Key = ()
    counts: dict[Key, int] = {}
    inside_text, open_brackets = False, 0
    for number, line in enumerate(text.splitlines(), start=1):
        bare = re.sub(r'"[^"]*"|\'[^\']*\'|#.*', "", line)
        if not inside_text and not open_brackets:
            if header := re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line):
                *outer, last = _split_key(header[2])
                table = (*_with_indexes(outer, counts), last)
                if header[1] == "[[":
                    counts[table] = counts.get(table, -1) + 1
                table += (str(counts[table]),) if table in counts else ()
                lines[table] = number
                continue
            if key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
                lines[table + _split_key(key[1])] = number
        if not inside_text:
            open_brackets += bare.count("[") - bare.count("]")
        inside_text ^= (line.count('"""') + line.count("'''")) % 2 == 1
    return lines


def _with_indexes(parts: list[str], counts: dict[Key, int]) -> Key:
    """e.g. paths.routes -> paths.0.routes.1, where the file has come to the second route of the first path."""
    key: Key = ()
    for part in parts:
        key += (part,)
        key += (str(counts[key]),) if key in counts else ()
    return key


def _split_key(dotted: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[^.]+", dotted))


def line_of(lines: dict[Key, int], key: Key) -> int:
    """The key's own line, or its table's, or the file's first."""
    while key and key not in lines:
        key = key[:-1]
    return lines.get(key, 1)


def dotted(key: Key) -> str:
    return ".".join(key)


def spec_problem(toml: Path, lines: dict[Key, int], detail: Any, model: type[BaseModel]) -> str:
    """A mistake that pydantic found in a file."""
    key = tuple(str(part) for part in detail["loc"])
    return as_problem(f"{shown(toml)}:{line_of(lines, key)} {dotted(key)}".rstrip(), detail, _model_at(model, key))


def as_problem(where: str, detail: Any, known: type[BaseModel]) -> str:
    """One pydantic error in our words; `known` is the model whose keys were possible."""
    name = str(detail["loc"][-1]) if detail["loc"] else ""
    if detail["type"] == "extra_forbidden":
        expected, next = nearest(name, list(known.model_fields)), "rename the key or take it out"
        return problem(where, "unknown key", got=name, expected=expected, next=next)
    if detail["type"] == "missing":
        return problem(where, "missing key", expected=f"{name} = …", next="add the key")
    got = None if isinstance(detail["input"], dict) else repr(detail["input"])
    expected = detail["msg"].removeprefix("Value error, ")
    return problem(where, "wrong value", got=got, expected=expected, next="mend the value")


def _model_at(model: type[BaseModel], key: Key) -> type[BaseModel]:
    """The model of the table that the key's last part stands in; an index or a name of a table leads no deeper."""
    for part in key[:-1]:
        field = model.model_fields.get(part)
        model = next(_models_in(field.annotation), model) if field else model
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """e.g. Arm of dict[str, Arm]"""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
