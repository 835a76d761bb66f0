"""What other programs read of the site: the Atom feed, the sitemap, llms.txt, and the JSON-LD of a lesson."""

from typing import Any
from xml.sax.saxutils import escape, quoteattr

from engine.lesson import Site, id_key
from engine.publishing.lists import Card


def address_of(site: Site, card: Card) -> str:
    return f"{site.base_url}/lessons/{card.id}/"


def feed_files(site: Site, cards: list[Card], explainers: list[Any], pages: list[str]) -> dict[str, bytes]:
    """Address -> content. `pages` are the addresses of all HTML pages of the site."""
    published = sorted(
        (card for card in cards if card.published), key=lambda card: (card.date, id_key(card.id)), reverse=True
    )
    return {
        "feed.xml": atom(site, published).encode(),
        "sitemap.xml": sitemap(site, pages).encode(),
        "robots.txt": f"User-agent: *\nAllow: /\nSitemap: {site.base_url}/sitemap.xml\n".encode(),
        "llms.txt": llms_txt(site, cards, explainers).encode(),
    }


def atom(site: Site, newest_first: list[Card]) -> str:
    """RFC 4287: absolute links, RFC 3339 dates, one entry a published lesson."""
    entries = "".join(_entry(site, card) for card in newest_first)
    updated = moment(newest_first[0]) if newest_first else "1970-01-01T00:00:00Z"
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom" xml:lang="en">\n'
        f"<title>{escape(site.title)}</title>\n<subtitle>{escape(site.tagline)}</subtitle>\n<id>{escape(site.base_url)}/</id>\n"
        f'<link rel="self" type="application/atom+xml" href={quoteattr(site.base_url + "/feed.xml")}/>\n'
        f'<link rel="alternate" type="text/html" href={quoteattr(site.base_url + "/")}/>\n'
        f"<updated>{updated}</updated>\n<author><name>{escape(site.author)}</name></author>\n{entries}</feed>\n"
    )


def _entry(site: Site, card: Card) -> str:
    address = address_of(site, card)
    content = f'<p>{escape(card.result)}</p><p><img src={quoteattr(address + "picture.png")} alt="" width="1200" height="630"/></p>'
    return (
        f"<entry>\n<title>{escape(f'{card.id} {card.title}')}</title>\n<id>{escape(address)}</id>\n"
        f'<link rel="alternate" type="text/html" href={quoteattr(address)}/>\n'
        f"<published>{moment(card)}</published>\n<updated>{moment(card)}</updated>\n"
        f'<summary>{escape(card.result)}</summary>\n<content type="html">{escape(content)}</content>\n</entry>\n'
    )


def moment(card: Card) -> str:
    """RFC 3339. A lesson has a date and no hour: its id gives minute and second, so that no two of a day are at one moment
    and readers that sort by time keep them in order."""
    phase, number = id_key(card.id)
    return f"{card.date}T00:{min(phase, 59):02}:{min(number, 59):02}Z"


def sitemap(site: Site, pages: list[str]) -> str:
    """Every page but 404, by its address as readers see it."""
    places = sorted(f"{site.base_url}/{page.removesuffix('index.html')}" for page in pages if page != "404.html")
    lines = "".join(f"<url><loc>{escape(place)}</loc></url>\n" for place in places)
    return f'<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{lines}</urlset>\n'


def llms_txt(site: Site, cards: list[Card], explainers: list[Any]) -> str:
    """The site in Markdown, as llmstxt.org proposes it: what it is, then a link a lesson with its result."""
    by_phase = [
        (phase, [card for card in cards if card.published and id_key(card.id)[0] == phase.number])
        for phase in site.phases
    ]
    sections = [
        f"## Phase {phase.number}: {phase.title}\n\n"
        + "".join(f"- [{card.id} {card.title}]({address_of(site, card)}): {card.result}\n" for card in of_phase)
        for phase, of_phase in by_phase
        if of_phase
    ]
    if explainers:
        lines = (
            f"- [{one.texts['title']}]({site.base_url}/{one.address}): {one.texts['summary']}\n" for one in explainers
        )
        sections.append("## Explainers\n\n" + "".join(lines))
    return f"# {site.title}\n\n> {site.tagline}\n\n{site.about}\n\n" + "\n".join(sections)


def json_ld(site: Site, card: Card) -> dict[str, Any]:
    """A lesson as schema.org's LearningResource, and its runs as a Dataset."""
    address, author = address_of(site, card), {"@type": "Person", "name": site.author}
    common = {
        "inLanguage": "en",
        "author": author,
        "creator": author,
        "datePublished": card.date,
        "isAccessibleForFree": True,
    }
    lesson = {
        "@type": "LearningResource", "@id": address, "url": address, "name": card.title, "description": card.result,
        "teaches": card.teaches, "learningResourceType": "lesson", "image": f"{address}picture.png",
        "isBasedOn": {"@id": f"{address}#data"}, **common,
    }  # fmt: skip
    data = {
        "@type": "Dataset", "@id": f"{address}#data", "url": f"{address}#data", "name": f"Training runs of lesson {card.id}: {card.title}",
        "description": f"Every logged step of every recorded run of lesson {card.id}. {card.result}",
        "distribution": [{"@type": "DataDownload", "encodingFormat": "text/csv", "contentUrl": f"{address}data/metrics.csv"}],
        **common,
    }  # fmt: skip
    return {"@context": "https://schema.org", "@graph": [lesson, data]}
