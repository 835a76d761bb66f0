"""The one small language of prose numbers, claims and results.

    often.final.val_loss | loss            a number and how it is written
    diff("redone_steps").mean | count      a verdict's number
    each_seed(rare.final.val_loss < often.final.val_loss)    true if it holds within every single seed
    count_seeds(rare.final.val_loss < often.final.val_loss)  at how many seeds it holds

It is a whitelist over Python's own syntax tree: numbers, texts, names of the scope, their fields, arithmetic,
comparison, and / or / not, and the functions below. Nothing else of Python can be reached from it.
"""

import ast
import json
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Self

from engine.errors import UserError, nearest, problem

OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
SIGNS = {ast.Lt: "<", ast.LtE: "≤", ast.Gt: ">", ast.GtE: "≥", ast.Eq: "=", ast.NotEq: "≠"}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "sqrt": math.sqrt,
    "ln": math.log,
    "exp": math.exp,
}
JAVASCRIPT = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.USub: "-",
    ast.Not: "!",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",  # and not ===, for which true is not 1
    ast.NotEq: "!=",
}
JAVASCRIPT_NAMES = {"ln": "log"}
NO_BREAK, MINUS = "\N{NO-BREAK SPACE}", "\N{MINUS SIGN}"


def _number(digits: int, unit: str = "", scale: float = 1) -> Callable[[float], str]:
    unit = NO_BREAK + unit if unit else ""
    return lambda value: f"{value * scale:,.{digits}f}".replace("-", MINUS) + unit


FORMATS: dict[str, Callable[[Any], str]] = {
    "loss": _number(3),
    "bpb": _number(3),
    "small": lambda value: _number(max(0, -math.floor(math.log10(abs(value)))) if value else 0)(
        value
    ),  # one digit that is not 0
    "count": _number(0),
    "one": _number(1),
    "times": lambda value: _number(1)(value) + NO_BREAK + "times",
    "percent": _number(1, "%", 100),
    "seconds": lambda value: _number(0 if abs(value) >= 10 else 1 if abs(value) >= 1 else 3, "s")(value),
    "milliseconds": _number(0, "ms", 1e3),
    "minutes": _number(1, "minutes", 1 / 60),
    "megabytes": _number(1, "MB", 1e-6),
    "rough": lambda value: rough(value),
    "spoken": lambda value: _scaled(value, ("", "thousand", "million", "billion", "trillion")),
    "bytes": lambda value: _scaled(value, ("bytes", "kB", "MB", "GB", "TB", "PB")),
    "millions": lambda value: f"{value / 1e6:,.0f}M",  # of parameters, as the field writes them
    "words": str,
    "hash": lambda value: str(value)[:12],
    "plain": lambda value: f"{value:,}",  # marks a number that is typed on purpose
}


def _scaled(value: float, units: tuple[str, ...]) -> str:
    """e.g. 7e9 -> 7 billion: three digits at most."""
    step = 0
    while float(f"{abs(value):.3g}") >= 1000 and step < len(units) - 1:
        value, step = value / 1000, step + 1
    return f"{value:,.3g}{NO_BREAK}{units[step]}".rstrip(NO_BREAK)


def written(value: float) -> str:
    """A number where nobody chose a format: four digits, or all of a whole one. The pages' scripts write the same way."""
    if not math.isfinite(value):
        return "undefined" if math.isnan(value) else f"{'' if value > 0 else MINUS}∞"
    digits = 0 if value == int(value) or abs(value) >= 1000 else max(0, 3 - math.floor(math.log10(abs(value))))
    return _half_up(value, digits)


def rough(value: float) -> str:
    """Two digits that are not zero, for what was computed from numbers that have no more."""
    if not math.isfinite(value) or value == 0:
        return written(value)
    return _half_up(value, 1 - math.floor(math.log10(abs(value))))


def _half_up(value: float, digits: int) -> str:
    """Rounded as JavaScript does; Python's own formatting sends halves to the even digit."""
    exact = Decimal(float(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, Context(prec=400))
    text = f"{exact:,f}"
    return (text.rstrip("0").rstrip(".") if digits > 0 else text).replace("-", MINUS)


def signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{written(value)}"


class Measure(float):
    """A mean over seeds that knows its spread: `x` is the mean, `x.sd` the sample standard deviation."""

    def __new__(cls, values: list[float]) -> Self:
        self = super().__new__(cls, sum(values) / len(values))
        self.fields = {"sd": sample_sd(values), "min": min(values), "max": max(values), "n": len(values)}
        return self


def sample_sd(values: list[float]) -> float:
    """Square root of the sum of squared distances from the mean / (n - 1); 0 for one value."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))


@dataclass(frozen=True)
class Namespace:
    """A value with fields, e.g. an arm. `what` names it in messages."""

    what: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Scope:
    """Names that expressions may use, the functions that need runs, and the same names within each single seed."""

    names: Mapping[str, Any]
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    seeds: Mapping[int, "Scope"] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """One comparison that was made while evaluating: the evidence of a claim."""

    seed: int | None
    left: Any
    sign: str
    right: Any
    held: bool


class Expression:
    """A parsed expression. UserError at once if the text is not in the language."""

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self.text = text.strip()
        body, _, name = self.text.rpartition("|")
        self.source, self.format = (body.strip(), name.strip()) if body else (self.text, "")
        if self.format and self.format not in FORMATS:
            raise self._error("unknown format", got=self.format, expected=nearest(self.format, list(FORMATS)))
        try:
            self._tree = ast.parse(self.source, mode="eval").body
        except SyntaxError as error:
            raise self._error("not an expression", got=self.source, expected=error.msg) from None

    def value(self, scope: Scope) -> Any:
        return self._evaluate(self._tree, scope, None, [])

    def evidence(self, scope: Scope) -> tuple[Any, list[Compared]]:
        """The value, and each comparison on the way to it."""
        trace: list[Compared] = []
        return self._evaluate(self._tree, scope, None, trace), trace

    def written(self, scope: Scope) -> str:
        """The value as prose shows it. UserError if no format is named or the number is typed, not computed."""
        if not self.format:
            raise self._error(
                "a number needs a format", got=self.text, expected=f"{self.source} | one of {', '.join(FORMATS)}"
            )
        if self.format != "plain" and not self._reads_something():
            raise self._error(
                "a typed number",
                got=self.text,
                expected="an expression over the runs, or | plain if it is typed on purpose",
            )
        value = self.value(scope)
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error("not a finite number", got=f"{self.source} = {value}")
        try:
            return FORMATS[self.format](value)
        except (TypeError, ValueError):
            raise self._error(
                f"{self.format} cannot write this value", got=f"{self.source} = {_short(value)}"
            ) from None

    def javascript(self, scope: Scope, variables: set[str]) -> str:
        """The same expression for a page's script: `variables` become fields of `v`, all other names are known now."""
        return self._translate(self._tree, scope, variables)

    def _translate(self, node: ast.expr, scope: Scope, variables: set[str]) -> str:
        inner = lambda child: self._translate(child, scope, variables)
        match node:
            case ast.Name(id=name) if name in variables:
                return f"v.{name}"
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
                return f"Math.{JAVASCRIPT_NAMES.get(name, name)}({', '.join(map(inner, arguments))})"
            case ast.UnaryOp(op=op, operand=operand) if type(op) in JAVASCRIPT:
                return f"({JAVASCRIPT[type(op)]}{inner(operand)})"
            case ast.BinOp(left=left, op=op, right=right) if type(op) in JAVASCRIPT:
                return f"({inner(left)} {JAVASCRIPT[type(op)]} {inner(right)})"
            case ast.BoolOp(op=op, values=values):
                # Boolean(…): there && and || give one of their operands, here they give true or false.
                return f"({(' && ' if isinstance(op, ast.And) else ' || ').join(f'Boolean({inner(value)})' for value in values)})"
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in JAVASCRIPT:
                return f"({inner(left)} {JAVASCRIPT[type(op)]} {inner(right)})"
        value = self._evaluate(node, scope, None, [])
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise self._error("not a finite number", got=f"{ast.unparse(node)} = {_short(value)}")
        return json.dumps(value)

    def _reads_something(self) -> bool:
        """Whether a name of the scope is in it, or a function of the runs; abs(3.2) is still a typed number."""
        called = {id(node.func) for node in ast.walk(self._tree) if isinstance(node, ast.Call)}
        names = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name)]
        return any(id(name) not in called or name.id not in FUNCTIONS for name in names)

    def _error(self, what: str, **parts: Any) -> UserError:
        return UserError(problem(self.where, what, **({"next": "mend the expression"} | parts)))

    def _evaluate(self, node: ast.expr, scope: Scope, seed: int | None, trace: list[Compared]) -> Any:
        inner = lambda child: self._evaluate(child, scope, seed, trace)
        match node:
            case ast.Constant(value=int() | float() | str() as value):
                return value
            case ast.Name(id=name):
                return self._look_up(name, scope.names, "name")
            case ast.Attribute(value=owner, attr=name):
                return self._field(inner(owner), name)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
                return self._apply(op, inner(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return self._apply(op, inner(left), inner(right))
            case ast.BoolOp(op=op, values=values):
                results = [inner(value) for value in values]  # all of them: each is evidence
                return all(results) if isinstance(op, ast.And) else any(results)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in SIGNS:
                sides = inner(left), inner(right)
                held = self._apply(op, *sides)
                trace.append(Compared(seed, sides[0], SIGNS[type(op)], sides[1], held))
                return held
            case ast.Call(func=ast.Name(id="each_seed" | "count_seeds" as name), args=[condition], keywords=[]):
                if not scope.seeds:
                    raise self._error("there are no seeds here", got=f"{name}(…)")
                # A list: every seed is evidence, so none may be skipped.
                held = [bool(self._evaluate(condition, one, number, trace)) for number, one in scope.seeds.items()]
                return all(held) if name == "each_seed" else sum(held)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                function = self._look_up(name, {**FUNCTIONS, **scope.functions}, "function")
                return self._call(function, [inner(argument) for argument in arguments])
        raise self._error("this part of Python is not in the language", got=ast.unparse(node))

    def _look_up(self, name: str, known: Mapping[str, Any], kind: str) -> Any:
        if name not in known:
            raise self._error(f"undefined {kind}", got=name, expected=nearest(name, list(known)))
        return known[name]

    def _field(self, owner: Any, name: str) -> Any:
        fields = owner.fields if isinstance(owner, Namespace | Measure) else {}
        if name not in fields:
            what = owner.what if isinstance(owner, Namespace) else "a number"
            raise self._error(f"{what} has no {name}", got=self.source, expected=nearest(name, list(fields)))
        return fields[name]

    def _apply(self, op: ast.AST, *values: Any) -> Any:
        return self._call(OPERATORS[type(op)], list(values))

    def _call(self, function: Callable[..., Any], arguments: list[Any]) -> Any:
        try:
            return function(*arguments)
        except (TypeError, ValueError, ArithmeticError, KeyError, AttributeError) as error:
            raise self._error("cannot be computed", got=f"{self.source} ({error})") from None


def _short(value: Any) -> str:
    return value.what if isinstance(value, Namespace) else repr(value)


def shown_value(value: Any) -> str:
    """A value in evidence: enough digits to judge by, hashes cut short."""
    if isinstance(value, str):
        return value[:12]
    if isinstance(value, float) and not float(value).is_integer():
        return f"{value:,.4g}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)
