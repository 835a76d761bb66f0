"""page.md -> HTML: Markdown, mathematics, highlighted code, numbers from the runs, and the check for typed digits.

`{{ … }}` is an inline rule of the Markdown parser: code stays code, every error has its line, and no template engine
ever sees the prose. Raw HTML is not let through.
"""

import html
import itertools
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag
from xml.etree import ElementTree

import latex2mathml.converter
from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from engine.errors import UserError, nearest, problem, shown
from engine.expressions import NO_BREAK, Expression, Scope
from engine.lesson import Term

# A bar inside {{ }} would end a table's cell: it travels through the block parser as a private character.
BAR, HIDDEN_BAR = "|", "\ue000"

# What may hold digits without being a figure: a date, a year in brackets, a lesson's id, a name such as bf16, GPT-2, H100.
ALLOWED_DIGITS = re.compile(
    r"\b\d{4}-\d{2}-\d{2}\b"
    r"|\b\d{1,2} (?:January|February|March|April|May|June|July|August|September|October|November|December) \d{4}\b"
    r"|\((?:1[89]|20)\d{2}\)"
    r"|\b[Ll]essons? \d+\.\d+(?:(?:, | and | to )\d+\.\d+)*"
    r"|\b[A-Za-z][A-Za-z_]*-?\d[\w.]*"
)
MATHML = re.compile(
    r"\{http://www.w3.org/1998/Math/MathML\}(math|none|merror|m(row|i|n|o|s|text|space|sqrt|root|frac|style|sub|sup|subsup"
    r"|under|over|underover|table|tr|td|padded|phantom|enclose|fenced|multiscripts))"
)
MATHML_ATTRIBUTES = re.compile(
    r"display|stretchy|form|fence|separator|accent(under)?|movablelimits|[lr]space|largeop|symmetric|m(in|ax)size|mathvariant"
    r"|linethickness|displaystyle|scriptlevel|width|height|depth|voffset|(column|row)(align|spacing|lines)|frame|open|close"
)
ElementTree.register_namespace("", "http://www.w3.org/1998/Math/MathML")
# A line never ends between a computed number and its unit.
BEFORE_UNIT = re.compile(r"^ (?=(?:%|[kMGT]?B(?:/s)?|[GT]FLOP/s|µs|ms|s|nats?|bits?|bytes|steps?|tokens?)(?!\w))")
DIGIT_NEXT = "write an expression over the runs, or {{ … | plain }} if the number is typed on purpose"


Samples = Iterable[tuple[str, int, str, str]]  # arm, step, prompt, prompt and what was written after it
TERM = "glossary:"  # [nats](glossary:nat) marks a word that the glossary explains


@dataclass(frozen=True)
class Prose:
    """A page's prose as HTML, and where it links to: (target, line)."""

    html: str
    links: list[tuple[str, int]]


def render_prose(
    text: str,
    where: str,
    scope: Scope,
    taken_ids: Iterable[str] = (),
    samples: Samples = (),
    glossary: Mapping[str, Term] | None = None,
    root: str = "",
    figures: Mapping[str, str] | None = None,
) -> Prose:
    """`taken_ids` are those of the page around the prose; `samples` is what the models wrote; `figures` are ready as HTML;
    `root` leads from the page to the site's. UserError with every undefined name and term, typed digit and unreadable formula, each with its line."""
    parser, env = _parser(), {}
    tokens = parser.parse(_hide_bars(text), env)
    problems: list[str] = []
    links: list[tuple[str, int]] = []
    _give_ids(tokens, set(taken_ids))
    _no_empty_heads(tokens)
    for token in tokens:
        if token.type == "inline":
            line = token.map[0] + 1 if token.map else 1
            links += _finish_inline(token.children or [], where, line, scope, problems)
            for note in [child for child in token.children or [] if child.type == "footnote_ref"]:
                inside = env["footnotes"]["list"][note.meta["id"]]["tokens"]
                links += _finish_inline(inside, where, line, scope, problems)
        elif token.type in ("fence", "code_block"):
            token.content = token.content.replace(HIDDEN_BAR, BAR)
            if token.info.startswith("sample "):
                _fill_sample(token, f"{where}:{token.map[0] + 1}", samples, problems)
            elif token.info.startswith("figure "):
                _place_figure(token, f"{where}:{token.map[0] + 1}", figures or {}, problems)
        elif token.type == "math_block":
            _formula(token, f"{where}:{token.map[0] + 1}", problems)
    _pictures_to_figures(tokens)
    problems += _undefined_terms(links, where, glossary or {})
    if problems:
        raise UserError(*problems)
    _explain_terms(tokens, env, glossary or {}, root)
    return Prose(parser.renderer.render(tokens, parser.options, env), links)


def _fill_sample(token: Token, where: str, samples: Samples, problems: list[str]) -> None:
    """A block ```sample ARM STEP``` around a prompt becomes what that arm wrote after it: nobody copies samples by hand."""
    arm, _, step = token.info.removeprefix("sample ").partition(" ")
    prompt = token.content.strip()
    known = {(of_arm, str(at)): text for of_arm, at, asked, text in samples if asked.strip() == prompt}
    if (arm, step) in known:
        token.content, token.info = known[arm, step], ""
    else:
        there = ", ".join(f"sample {of_arm} {at}" for of_arm, at in known) or f"a prompt of the lesson, not {prompt!r}"
        problems.append(problem(where, "no run drew such a sample", got=token.info, expected=there, next="name an arm and step that did"))  # fmt: skip


def _place_figure(token: Token, where: str, figures: Mapping[str, str], problems: list[str]) -> None:
    """A block ```figure ID``` is the place of a figure that explainer.toml describes."""
    ident = token.info.removeprefix("figure ").strip()
    if ident in figures:
        token.type, token.content = "html_block", figures[ident]
    else:
        problems.append(problem(where, "no such figure", got=ident, expected=nearest(ident, list(figures)), next="name a figure of explainer.toml"))  # fmt: skip


def read_prose(page: Path) -> str:
    """UserError if it is not UTF-8."""
    try:
        return page.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(problem(shown(page), "not UTF-8 text", got=str(error), next="save the file as UTF-8")) from None


def linked_files(folder: Path, links: list[tuple[str, int]]) -> dict[str, bytes]:
    """The pictures and other files of the folder that its prose links to: they are published beside the page."""
    names = {posixpath.normpath(unquote(urldefrag(target).url)) for target, _ in links}
    inside = {name: folder / name for name in names if ":" not in name and not name.startswith(("/", ".."))}
    return {name: path.read_bytes() for name, path in sorted(inside.items()) if path.is_file()}


def render_line(text: str, where: str, scope: Scope) -> str:
    """One text of lesson.toml with its expressions filled in, as plain text (a template escapes it)."""
    problems: list[str] = []
    parts = re.split(r"\{\{(.*?)\}\}", text)
    for number, part in enumerate(parts):
        if number % 2:
            parts[number] = _written(part, where, scope, problems)
            continue
        problems += _typed_digits(part, where)
        parts[number] = BEFORE_UNIT.sub(NO_BREAK, part) if number else part
        if "{{" in part:
            problems.append(
                problem(where, "an expression without its end", got=part.strip(), expected="}}", next="close it")
            )
    if problems:
        raise UserError(*problems)
    return "".join(parts)


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "highlight": _highlighted}).enable(["table", "strikethrough"])
    # "costs $5 and $6" is no mathematics: no space inside the dollars, no digit outside them.
    parser.use(dollarmath_plugin, allow_space=False, allow_digits=False, double_inline=False)
    parser.inline.ruler.before("text", "expression", _expression_rule)
    parser.add_render_rule(
        "expression", lambda self, tokens, at, *_: f'<span class="number">{html.escape(tokens[at].content)}</span>'
    )
    parser.use(footnote_plugin, inline=True).disable(["footnote_def", "footnote_ref", "footnote_tail"])
    parser.add_render_rule("footnote_ref", _sidenote)
    parser.add_render_rule("math_inline", lambda self, tokens, at, *_: tokens[at].content)
    parser.add_render_rule("math_block", lambda self, tokens, at, *_: f'<div class="math">{tokens[at].content}</div>\n')
    parser.add_render_rule("table_open", lambda self, *_: '<div class="table"><table>\n')
    parser.add_render_rule("table_close", lambda self, *_: "</table></div>\n")
    return parser


def _sidenote(self, tokens: list[Token], at: int, options, env) -> str:
    """^[…] stands beside its line where there is a margin, and under it on a phone: never at the far end of the page."""
    note = env["footnotes"]["list"][tokens[at].meta["id"]]
    number = tokens[at].meta["id"] + 1
    return f'<sup class="noted">{number}</sup><small class="sidenote">{number}. {self.renderInline(note["tokens"], options, env)}</small>'


def _hide_bars(text: str) -> str:
    return re.sub(r"\{\{[^{}\n]*\}\}", lambda found: found[0].replace(BAR, HIDDEN_BAR), text)


def _expression_rule(state: StateInline, silent: bool) -> bool:
    if not state.src.startswith("{{", state.pos):
        return False
    end = state.src.find("}}", state.pos)
    if end < 0:
        return False
    if not silent:
        state.push("expression", "", 0).content = state.src[state.pos + 2 : end].replace(HIDDEN_BAR, BAR)
    state.pos = end + 2
    return True


def _finish_inline(
    tokens: list[Token], where: str, line: int, scope: Scope, problems: list[str]
) -> list[tuple[str, int]]:
    """Fill in expressions and formulas, check digits; returns the links."""
    links, inside_link, before = [], False, None
    for token in tokens:
        here = f"{where}:{line}"
        if token.type in ("softbreak", "hardbreak"):
            line += 1
        elif token.type == "link_open":
            links.append((str(token.attrGet("href")), line))
            inside_link = not term_of(links[-1][0])  # the text of a link may hold digits, a marked term is prose
        elif token.type == "link_close":
            inside_link = False
        elif token.type == "image":
            links.append((str(token.attrGet("src")), line))
            problems += _typed_digits(token.content, here)
            if "title" in token.attrs:
                try:
                    token.attrSet("title", render_line(str(token.attrs["title"]).replace(HIDDEN_BAR, BAR), here, scope))
                except UserError as error:
                    problems += error.problems
            for child in token.children or []:
                if child.type == "expression":  # an alternative text is plain text
                    child.type, child.content = "text", _written(child.content, here, scope, problems)
        elif token.type == "code_inline":
            token.content = token.content.replace(HIDDEN_BAR, BAR)
        elif token.type == "expression":
            token.content = _written(token.content, here, scope, problems)
        elif token.type == "math_inline":
            _formula(token, here, problems)
        elif token.type == "text" and "{{" in token.content:
            problems.append(
                problem(
                    here,
                    "an expression without its end",
                    got=token.content.strip(),
                    expected="}}",
                    next="close it on the same line",
                )
            )
        elif token.type == "text":
            if not inside_link:
                problems += _typed_digits(token.content, here)
            if before and before.type == "expression":
                token.content = BEFORE_UNIT.sub(NO_BREAK, token.content)
        before = token
    return links


def _written(text: str, where: str, scope: Scope, problems: list[str]) -> str:
    try:
        return Expression(text, where).written(scope)
    except UserError as error:
        problems.extend(error.problems)
        return ""


def term_of(target: str) -> str:
    """The key of the term that a link's target marks, or nothing."""
    return target[len(TERM) :] if target.lower().startswith(TERM) else ""


def _undefined_terms(links: list[tuple[str, int]], where: str, glossary: Mapping[str, Term]) -> list[str]:
    marked = [(key, line) for target, line in links if (key := term_of(target))]
    return [
        problem(f"{where}:{line}", "the glossary has no such term", got=key, expected=nearest(key, list(glossary)), next="name one of these, or explain the term in glossary.toml")
        for key, line in marked
        if key not in glossary
    ]  # fmt: skip


def _explain_terms(tokens: list[Token], env: Any, glossary: Mapping[str, Term], root: str) -> None:
    """A marked word becomes a link to its place in the glossary, with its meaning behind it for hover, focus and touch."""
    notes = [note["tokens"] for note in env.get("footnotes", {}).get("list", {}).values()]
    numbers = itertools.count(1)
    for children in [*(token.children or [] for token in tokens), *notes]:
        explained, meaning = [], None
        for token in children:
            explained.append(token)
            if token.type == "link_open" and (key := term_of(str(token.attrGet("href")))):
                ident = f"meaning-{next(numbers)}"
                token.attrs = {"class": "term", "href": f"{root}glossary/index.html#{key}", "aria-describedby": ident}
                text = html.escape(meaning_of(key, glossary[key]))
                meaning = Token(
                    "html_inline",
                    "",
                    0,
                    content=f'<span class="meaning" role="tooltip" data-pagefind-ignore id="{ident}">{text}</span>',
                )
            elif token.type == "link_close" and meaning:
                explained.append(meaning)
                meaning = None
        children[:] = explained


def meaning_of(key: str, term: Term) -> str:
    """The meaning as plain text. UserError for a typed digit, as everywhere in prose."""
    return render_line(term.meaning, f"glossary.toml terms.{key}.meaning", Scope({}))


def _typed_digits(text: str, where: str) -> list[str]:
    left = ALLOWED_DIGITS.sub(lambda found: " " * len(found[0]), text)
    return [
        problem(
            where,
            "a number typed into prose",
            got=text[max(0, at.start() - 30) : at.end() + 20].strip(),
            next=DIGIT_NEXT,
        )
        for at in re.finditer(r"\d[\d.,]*", left)
    ]


def _formula(token: Token, where: str, problems: list[str]) -> None:
    try:
        token.content = formula(token.content, "block" if token.type == "math_block" else "inline")
    except ValueError as error:
        problems.append(problem(where, "a formula that cannot be read", got=token.content.strip(), expected=f"LaTeX ({error})", next="mend the formula"))  # fmt: skip


def formula(latex: str, display: str) -> str:
    """LaTeX to MathML at build time: browsers draw it themselves, without JavaScript or fonts from elsewhere.

    ValueError if it cannot be read.
    """
    try:
        mathml = latex2mathml.converter.convert(latex, display=display)
        # The library escapes nothing: text within a formula could bring elements of its own, or a bare "&".
        root = ElementTree.fromstring(mathml)
    except Exception as error:  # noqa: BLE001 - the library raises many kinds for a formula that it cannot read
        raise ValueError(str(error)) from None
    for node in root.iter():
        if not MATHML.fullmatch(node.tag):
            raise ValueError(f"it would put <{node.tag.rpartition('}')[2]}> into the page")
        if strange := [name for name in node.attrib if not MATHML_ATTRIBUTES.fullmatch(name)]:
            raise ValueError(f"it would put {', '.join(strange)} on an element of the page")
    _space_functions(root)
    # Written anew from what was checked: HTML ends a comment elsewhere than XML does.
    return ElementTree.tostring(root, encoding="unicode")


def _space_functions(root: ElementTree.Element) -> None:
    """A thin space between a function and its argument, as TeX sets it: "ln 2", but "ln(2)"."""
    namespace = "{http://www.w3.org/1998/Math/MathML}"
    for parent in root.iter():
        for at, (node, after) in reversed(list(enumerate(itertools.pairwise(list(parent))))):
            if (
                node.tag == f"{namespace}mi"
                and len(node.text or "") > 1
                and after.tag != f"{namespace}mo"
                and after.tag != f"{namespace}mspace"
            ):
                parent.insert(at + 1, ElementTree.Element(f"{namespace}mspace", {"width": "0.17em"}))


def _highlighted(code: str, language: str, _: str) -> str:
    try:
        return highlight(code, get_lexer_by_name(language), HtmlFormatter(nowrap=True))
    except ClassNotFound:
        return html.escape(code)


def _give_ids(tokens: list[Token], taken: set[str]) -> None:
    """Headings get ids from their words, so that links to them survive reordering; never empty, never twice."""
    for heading, inline in itertools.pairwise(tokens):
        if heading.type == "heading_open":
            stem = slug(
                "".join(child.content for child in inline.children or [] if child.type in ("text", "code_inline"))
            )
            ident, number = stem, 2
            while ident in taken:
                ident, number = f"{stem}-{number}", number + 1
            taken.add(ident)
            heading.attrSet("id", ident)


def _no_empty_heads(tokens: list[Token]) -> None:
    """A table's empty corner is a cell: a head without text announces nothing."""
    for opening, inline, closing in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if opening.type == "th_open" and not inline.content:
            opening.tag = closing.tag = "td"


def _pictures_to_figures(tokens: list[Token]) -> None:
    """A paragraph that is one picture with a title, ![what it shows](picture.png "Its caption"), is a figure."""
    for opening, inline, closing in zip(tokens, tokens[1:], tokens[2:], strict=False):
        children = inline.children or []
        if opening.type == "paragraph_open" and [child.type for child in children] == ["image"]:
            opening.tag = closing.tag = "figure"
            if caption := children[0].attrs.pop("title", ""):
                children += [
                    Token("html_inline", "", 0, content=f"<figcaption>{html.escape(str(caption))}</figcaption>")
                ]
            children[0].attrSet("loading", "lazy")


def slug(text: str) -> str:
    """e.g. "Ça va? Oui!" -> "ça-va-oui". Letters of every script stay; a heading of symbols alone is "section"."""
    words = re.findall(r"\w+", re.sub(r"\{\{.*?\}\}", "", unicodedata.normalize("NFC", text)).lower())
    return "-".join(words) or "section"
