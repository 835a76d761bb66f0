"""Everything -> site/: gather and check all of it, write it aside, swap it in.

Nothing is written before every lesson, run, text, claim and link was found good, so a failed build leaves the old site
as it was, byte by byte. A lesson whose content did not change is not rendered again.
"""

import hashlib
import importlib.metadata
import multiprocessing
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

from engine.cache import kept
from engine.errors import Collected, UserError, disk_problem, problem, shown
from engine.explainer import load_explainers
from engine.expressions import Scope
from engine.lesson import Lesson, Site, marked_terms
from engine.publishing.explainers import ExplainerPage, explainer_page
from engine.publishing.feeds import feed_files
from engine.publishing.lists import TEMPLATES, Card, list_pages, neighbours
from engine.publishing.prose import TERM, meaning_of, render_line, term_of
from engine.publishing.search import search_files
from engine.publishing.stale import Built, Contents, Rendered
from engine.toml import line_of, read_toml

MARK = ".made-by-lesson-lab"  # an output folder without it holds somebody's own files: never wiped
NEIGHBOURS = b"<!--neighbours-->"  # in a lesson's page; no text of a lesson can hold it, "<" is escaped in all of them
FEW = 3  # as many lessons are rendered faster than processes for them are started

Job = tuple[
    Site, Lesson, Path, bool, Path
]  # site, lesson, runs' folder, whether with local runs, where the result is kept


@dataclass
class Gathered:
    """The whole site, checked, before it is written: lessons, other files, and what a person should be told."""

    lessons: list[Rendered] = field(default_factory=list)
    explainers: list[ExplainerPage] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)  # address -> content, of all that belongs to no lesson

    @property
    def pages(self) -> int:
        return sum(address.endswith(".html") for address in self.files) + sum(bool(one.files) for one in self.lessons)

    @property
    def notices(self) -> list[str]:
        return [notice for one in self.lessons for notice in one.notices]


def gather(
    site: Site,
    lessons: list[Lesson],
    lessons_folder: Path,
    runs_folder: Path,
    *,
    with_local: set[str],
    contents: Contents | None = None,
) -> Gathered:
    """Render and check everything. `with_local` names lessons whose page also shows local runs; without `contents`, no cache is trusted and no search index made: it is a check.

    UserError with all problems of all lessons.
    """
    glossary, explainers = lessons_folder / "glossary.toml", lessons_folder / "explainers"
    _check_meanings(site, glossary)
    asked = [(site, lesson, runs_folder, lesson.id in with_local) for lesson in lessons]
    where = contents or Contents(lessons_folder, runs_folder)
    jobs = [(*job, where.lesson_folder(site, job[1], job[3])) for job in asked]
    done = [Rendered.load(folder) if contents else None for *_, folder in jobs]
    stale = [job for job, rendered in zip(jobs, done, strict=True) if rendered is None]
    collected = Collected()
    fresh = iter(collected.get(lambda: _render_all(stale), []))
    collected.get(
        lambda: where.refuse_changed([lesson for _, lesson, *_ in stale], [folder for *_, folder in stale]), None
    )
    pages_of_explainers = collected.get(lambda: _explainers(site, lessons_folder), [])
    prose = [*(lesson.page for lesson in lessons), *sorted(explainers.glob("*/page.md"))]
    collected.get(lambda: _refuse_unused_terms(site, glossary, prose), None)
    collected.raise_all()
    gathered = Gathered([rendered or next(fresh) for rendered in done], pages_of_explainers)
    cards = [one.card for one in gathered.lessons]
    pages = list_pages(site, cards, gathered.explainers, _terms(site, gathered))
    lesson_pages = [f"lessons/{card.id}/index.html" for card in cards if card.published]
    gathered.files = {address: html.encode() for address, html in pages.items()} | assets()
    for one in gathered.explainers:
        gathered.files |= one.files
    own_pages = [address for address in gathered.files if address.endswith(".html")]
    gathered.files |= feed_files(site, cards, gathered.explainers, [*own_pages, *lesson_pages])
    with ThreadPoolExecutor(1) as beside:  # Pagefind is a process of its own: links are checked meanwhile
        index = beside.submit(search_files, _pages(gathered) if contents else {})
        check_links(
            gathered, {lesson.id: lesson.page for lesson in lessons}, lessons_folder / "site.toml", site.base_url
        )
    gathered.files |= index.result()
    return gathered


def _explainers(site: Site, lessons_folder: Path) -> list[ExplainerPage]:
    """All of them, each time: without curves a page takes a hundredth of a second. UserError with all problems."""
    collected = Collected()
    found = [collected.get(lambda one=one: explainer_page(site, one), None) for one in load_explainers(lessons_folder)]
    collected.raise_all()
    return found


def _pages(gathered: Gathered) -> dict[str, bytes]:
    """Address -> HTML of every page."""
    of_lessons = {
        f"lessons/{one.card.id}/index.html": one.content("index.html") for one in gathered.lessons if one.files
    }
    return of_lessons | {address: html for address, html in gathered.files.items() if address.endswith(".html")}


def _check_meanings(site: Site, glossary: Path) -> None:
    """UserError for a typed digit or an expression that cannot be read in a meaning, with its line."""
    lines, collected = read_toml(glossary)[1] if site.glossary else {}, Collected()
    for key, term in site.glossary.items():
        where = f"{shown(glossary)}:{line_of(lines, ('terms', key))} terms.{key}"
        collected.get(lambda where=where, term=term: render_line(term.meaning, where, Scope({})), "")
    collected.raise_all()


def _refuse_unused_terms(site: Site, glossary: Path, pages: list[Path]) -> None:
    """UserError for a term that no page.md marks, be its page published or not."""
    used = set().union(*(marked_terms(page.read_text(encoding="utf-8", errors="replace")) for page in pages))
    unused = [key for key in site.glossary if key not in used]
    lines = read_toml(glossary)[1] if unused else {}
    if unused:
        raise UserError(*(problem(f"{shown(glossary)}:{line_of(lines, ('terms', key))} terms.{key}", "no page uses this term", next=f"mark it where a page's prose uses it, [{site.glossary[key].name}]({TERM}{key}), or take it out") for key in unused))  # fmt: skip


def _terms(site: Site, gathered: Gathered) -> list[dict[str, Any]]:
    """The glossary by name, with the pages that use each term."""
    pages = [
        (f"lessons/{one.card.id}/index.html", f"lesson {one.card.id}", one.links)
        for one in gathered.lessons
        if one.files
    ]
    pages += [(f"{one.address}index.html", one.texts["title"], one.links) for one in gathered.explainers]
    uses: dict[str, list[tuple[str, str]]] = {key: [] for key in site.glossary}
    for address, title, links in pages:
        for key in dict.fromkeys(term_of(target) for target, _ in links if term_of(target)):
            uses[key].append((address, title))
    by_name = sorted(site.glossary.items(), key=lambda item: item[1].name.casefold())
    return [
        {"key": key, "name": term.name, "meaning": meaning_of(key, term), "uses": uses[key]} for key, term in by_name
    ]


def _render_all(jobs: list[Job]) -> list[Rendered]:
    """In order. Many are shared between processes, which are started anew: a copy of this one could stop at a lock that a
    thread of it held."""
    if len(jobs) <= FEW:
        results = [render(job) for job in jobs]
    else:
        workers = min(os.cpu_count() or 1, len(jobs))
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            pool.submit(assets)  # to make the chart library takes as long as several lessons
            results = list(pool.map(render, jobs, chunksize=max(1, min(8, len(jobs) // workers // 2))))
    problems = [text for result in results if isinstance(result, UserError) for text in result.problems]
    if problems:
        raise UserError(*dict.fromkeys(problems))
    return [result for result in results if isinstance(result, Rendered)]


def render(job: Job) -> Rendered | UserError:
    """One lesson, from its folder and its runs to its files in the cache. The error is returned: others go on."""
    from engine.publishing.choose import choose_runs
    from engine.publishing.pages import lesson_page

    site, lesson, runs_folder, with_local, folder = job
    spec, notices = lesson.spec, []
    card = Card(lesson.id, spec.topic, spec.title, spec.teaches, str(spec.date))
    try:
        chosen = choose_runs(lesson, runs_folder, with_local, notices)
        if chosen is None:
            return Rendered(card, {}, {}, [], notices, [], 0, [], []).store(folder, {})
        page = lesson_page(site, chosen)
    except UserError as error:
        return error
    links = _Links(page.files["index.html"].decode())
    downloads = {
        f"data/{place}/{name}": (run.folder / name).relative_to(runs_folder).as_posix()
        for place, run in chosen.folders()
        for name in (*run.summary["files_sha256"], "summary.json")
    }
    hashes = {address: hashlib.sha256(content).hexdigest() for address, content in page.files.items()}
    rendered = Rendered(page.card, hashes, downloads, page.links, notices, page.said, len(chosen.runs), sorted(links.ids), links.targets)  # fmt: skip
    return rendered.store(folder, page.files)


def assets() -> dict[str, bytes]:
    """Stylesheet, our script, and the one copy of Vega for the whole site."""
    files = {
        f"assets/{name}": (TEMPLATES / name).read_bytes()
        for name in ("style.css", "page.js", "explainer.js", "search.js", "favicon.svg")
    }
    return files | {"assets/vega.js": kept(f"vega-{importlib.metadata.version('vl-convert-python')}.js", _vega)}


def _vega() -> bytes:
    import vl_convert

    # The bundle is a flat script whose thousand short names would become globals: in a function they stay inside. Of
    # what it hands out we use window.vegaEmbed alone.
    return b"(function () {\n" + vl_convert.javascript_bundle().encode() + b"\n})();\n"


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
        self.targets += [str(values[name]) for name in ("href", "src", "data-live") if values.get(name) is not None]


def check_links(gathered: Gathered, prose: dict[str, Path], home: Path, base_url: str) -> None:
    """Every link within the site leads to a page or file that is there (case-exact), and to an id on it.

    `prose` has the page.md of each lesson, to name in messages; of other pages, it is `home`.
    """
    ids, targets, lines, sources = {}, {}, {}, {}
    for one in gathered.lessons:
        if one.files:
            address = f"lessons/{one.card.id}/index.html"
            ids[address], targets[address], lines[address], sources[address] = set(one.ids), one.targets, one.links, prose[one.card.id]  # fmt: skip
    of_explainers = {f"{one.address}index.html": one for one in gathered.explainers}
    for address, content in gathered.files.items():
        if address.endswith(".html"):
            links, own = _Links(content.decode()), of_explainers.get(address)
            ids[address], targets[address] = links.ids, links.targets
            lines[address], sources[address] = (own.links, own.source) if own else ([], home)
    known = addresses(gathered)
    problems = []
    for page, of_page in targets.items():
        for target in dict.fromkeys(of_page):
            address, fragment = _resolve(page, target, base_url)
            where = f"{shown(sources[page])}{next((f':{line}' for link, line in lines[page] if link == target), '')}"
            if address is not None and address not in known:
                problems.append(_dead(where, target, "leads to no page or file of the site", address))
            elif address in ids and fragment and fragment not in ids[address]:
                problems.append(_dead(where, target, "leads to a place that the page does not have", f"#{fragment} on {address}"))  # fmt: skip
    if problems:
        raise UserError(*problems)


def addresses(gathered: Gathered) -> set[str]:
    of_lessons = {
        f"lessons/{one.card.id}/{address}" for one in gathered.lessons for address in (*one.files, *one.downloads)
    }
    return of_lessons | gathered.files.keys()


def _resolve(page: str, target: str, base_url: str) -> tuple[str | None, str]:
    """(address, fragment); no address for links that leave the site."""
    if target == base_url or target.startswith(base_url + "/"):
        page, target = "index.html", target.removeprefix(base_url).lstrip("/")
    if ":" in target.partition("/")[0] or target.startswith("//"):
        return None, ""
    path, fragment = urldefrag(target)
    if not path:
        return page, unquote(fragment)
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(path)))
    folder = path.endswith("/") or joined == "."
    return (posixpath.normpath(f"{joined}/index.html") if folder else joined), unquote(fragment)


def _dead(where: str, target: str, what: str, got: str) -> str:
    return problem(where, f"the link {target} {what}", got=got, next="mend the link")


def write(gathered: Gathered, runs_folder: Path, out: Path, built: Built, key: str) -> None:
    """Write the site aside, then swap it in. Lessons whose folder in the old site is right already are moved, not written.

    UserError if `out` is not ours or the disk refuses; the old site then stands unchanged.
    """
    refuse_foreign_folder(out)
    beside = neighbours([one.card for one in gathered.lessons])
    made_of = {one.card.id: f"{Path(one.folder).name} {beside[one.card.id]}" for one in gathered.lessons if one.files}
    same = [lesson_id for lesson_id, what in made_of.items() if built.lessons.get(lesson_id) == what]
    files = {
        address: sha
        for address, sha in built.files.items()
        if address.startswith(tuple(f"lessons/{one}/" for one in same))
    }
    aside = Path()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        for address, content in _contents(gathered, runs_folder, beside, same):
            path = aside / address
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            files[address] = hashlib.sha256(content).hexdigest()
        if same:
            (aside / "lessons").mkdir(exist_ok=True)
        _make_readable(aside)
        _swap(aside, out, [f"lessons/{lesson_id}" for lesson_id in same])
    except OSError as error:
        raise UserError(f"{disk_problem(error)}\n  note:     the old site is unchanged") from None
    finally:
        if aside != Path():
            shutil.rmtree(aside, ignore_errors=True)
    said = {"pages": gathered.pages, "notices": gathered.notices}
    built.remember(key, dict(sorted(files.items())), made_of, said)


def _contents(
    gathered: Gathered, runs_folder: Path, beside: dict[str, str], same: list[str]
) -> Iterator[tuple[str, bytes]]:
    yield MARK, b""
    yield from gathered.files.items()
    for one in gathered.lessons:
        if one.card.id in same:
            continue
        home = f"lessons/{one.card.id}"
        for address in one.files:
            content = one.content(address)
            if address == "index.html":
                content = content.replace(NEIGHBOURS, beside[one.card.id].encode())
            yield f"{home}/{address}", content
        for address, source in one.downloads.items():
            yield f"{home}/{address}", (runs_folder / source).read_bytes()


def _make_readable(folder: Path) -> None:
    """A temporary folder is born 0700; a web server is somebody else."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def refuse_foreign_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())) and not (out / MARK).exists():
        raise UserError(problem(shown(out), "this folder holds files that are not ours, so it is not replaced", expected=f"an empty folder, or one with {MARK} in it", next="name another folder with --out DIR"))  # fmt: skip


def _swap(new: Path, out: Path, moved: list[str]) -> None:
    """`new` becomes `out`, with the folders `moved` of the old one. All or nothing, but for a kill between two renames:
    then the next build finds that the output is not what it was, and writes it anew."""
    old = out.with_name(f".{out.name}-old-{os.getpid()}")
    steps = [(out / folder, new / folder) for folder in moved] + ([(out, old)] if out.exists() else []) + [(new, out)]
    done = []
    try:
        for source, target in steps:
            os.replace(source, target)
            done.append((source, target))
    except BaseException:  # Ctrl-C too
        for source, target in reversed(done):
            os.replace(target, source)
        raise
    shutil.rmtree(old, ignore_errors=True)
