"""The pages around the lessons: home, one a phase, glossary, search, colophon, 404. They are made from what each lesson's
page says of itself, so that no list needs the heavy libraries of a chart."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from engine.cache import CACHE
from engine.expressions import signed, written
from engine.lesson import Phase, Site, id_key

TEMPLATES = Path(__file__).parents[2] / "site_templates"


@dataclass(frozen=True)
class Card:
    """A lesson as lists show it. `result` and `picture` are empty where nothing is published."""

    id: str
    topic: str
    title: str
    teaches: str
    date: str
    published: bool = False
    draft: bool = False
    result: str = ""
    picture: str = ""  # SVG markup


@lru_cache
def templates() -> jinja2.Environment:
    compiled = CACHE / "templates"
    compiled.mkdir(parents=True, exist_ok=True)
    # autoescape=True and not select_autoescape(): that one skips names such as page.html.j2.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        bytecode_cache=jinja2.FileSystemBytecodeCache(str(compiled)),  # to compile them takes a sixth of a second
    )  # fmt: skip
    environment.filters |= {"written": written, "signed": signed}
    return environment


def json_for_script(value: Any) -> str:
    """Strict JSON that no text in it can end a <script> around."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def list_pages(site: Site, cards: list[Card], explainers: list[Any], terms: list[dict[str, Any]]) -> dict[str, str]:
    """Address -> HTML. `cards` are of the lessons that have a folder, by id; `terms` is the glossary, by name."""
    environment = templates()
    phases = [(phase, cards_of(phase, cards)) for phase in site.phases]
    latest = sorted(
        (card for card in cards if card.published), key=lambda card: (card.date, id_key(card.id)), reverse=True
    )
    render = lambda name, root, **context: environment.get_template(name).render(site=site, root=root, **context)
    pages = {"index.html": render("home.html", "", phases=phases, latest=latest, explainers=explainers)}
    if terms:
        pages["glossary/index.html"] = render("glossary.html", "../", terms=terms)
    for phase, of_phase in phases:
        published = [card for card in of_phase if card.published]
        address = f"phases/{phase.number}/index.html"
        pages[address] = render("phase.html", "../../", phase=phase, cards=of_phase, published=published)
    pages["search/index.html"] = render("search.html", "../")
    pages["colophon/index.html"] = render("colophon.html", "../")
    # 404.html is served at any depth, so it alone links with absolute addresses.
    return pages | {"404.html": render("404.html", site.base_url + "/")}


def cards_of(phase: Phase, cards: list[Card]) -> list[Card]:
    """Every lesson of the phase, those without a folder too, by id."""
    own = {card.id: card for card in cards if id_key(card.id)[0] == phase.number}
    planned = {one.id: Card(one.id, one.topic, one.topic, one.teaches, "") for one in phase.announced}
    return [card for _, card in sorted((planned | own).items(), key=lambda item: id_key(item[0]))]


def neighbours(cards: list[Card]) -> dict[str, str]:
    """Lesson id -> links to the published lessons before and after it. Not part of a lesson's own page: one new lesson
    would make its neighbours be drawn again."""
    template = templates().get_template("neighbours.html")
    published = [card for card in cards if card.published]
    return {
        card.id: template.render(
            before=published[at - 1] if at else None, after=published[at + 1] if at + 1 < len(published) else None
        )
        for at, card in enumerate(published)
    }
