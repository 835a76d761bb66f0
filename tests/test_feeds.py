"""What other programs read: the feed, the sitemap, llms.txt, the structured data, the picture of a link."""

import json
import re
import struct
from xml.etree import ElementTree

import pytest

ATOM = {"a": "http://www.w3.org/2005/Atom"}


@pytest.fixture
def site(recorded):
    recorded.copy_lesson("1.9")
    recorded.edit(recorded.toml, 'title = "What a crash costs"', 'title = "Costs <b> & \\"crashes\\""')
    newer = recorded.root / "lessons" / "1.9" / "lesson.toml"
    newer.write_text(newer.read_text().replace("date = 2026-11-30", "date = 2026-12-01"))
    assert recorded.build("--site-only", "--base-url", "https://other.example/notes") == 0
    return recorded.site


def test_the_feed_has_an_entry_a_lesson_with_absolute_links_and_whole_dates(site):
    feed = ElementTree.parse(site / "feed.xml").getroot()
    entries = feed.findall("a:entry", ATOM)
    assert [entry.findtext("a:title", "", ATOM) for entry in entries] == [
        "1.9 What a crash costs",
        '1.7 Costs <b> & "crashes"',
    ]
    for entry in entries:
        assert re.fullmatch(r"Saving rarely redid \d+\ssteps\.", entry.findtext("a:summary", "", ATOM))
        assert 'src="https://other.example/notes/lessons/1.' in entry.findtext("a:content", "", ATOM)
    dates = [node.text for name in ("updated", "published") for node in feed.iter(f"{{{ATOM['a']}}}{name}")]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", date) for date in dates) and len(dates) == 5
    assert len({entry.findtext("a:updated", "", ATOM) for entry in entries}) == 2
    links = [node.get("href") for node in feed.iter(f"{{{ATOM['a']}}}link")]
    assert all(link.startswith("https://other.example/notes/") for link in links) and len(links) == 4
    ids = [node.text for node in feed.iter(f"{{{ATOM['a']}}}id")]
    assert len(set(ids)) == len(ids) == 3
    assert feed.findtext("a:updated", "", ATOM) == "2026-12-01T00:01:09Z"  # of the newest lesson, not of the build


def test_the_sitemap_names_every_page_but_404(site):
    places = [
        node.text for node in ElementTree.parse(site / "sitemap.xml").getroot().iter() if node.tag.endswith("loc")
    ]
    pages = {path.relative_to(site).as_posix().removesuffix("index.html") for path in site.rglob("*.html")} - {
        "404.html"
    }
    assert places == [f"https://other.example/notes/{page}" for page in sorted(pages)]
    assert (site / "robots.txt").read_text().endswith("Sitemap: https://other.example/notes/sitemap.xml\n")


def test_llms_txt_names_every_published_lesson_with_its_result(site):
    text = (site / "llms.txt").read_text()
    assert text.startswith("# Learning to train models, in public\n\n> Two runs, one change.\n")
    assert re.search(
        r"\n- \[1\.9 What a crash costs\]\(https://other\.example/notes/lessons/1\.9/\): Saving rarely redid", text
    )


def test_a_lesson_tells_programs_what_it_is_and_where_its_data_are(site):
    page = (site / "lessons" / "1.7" / "index.html").read_text()
    found = re.search(r'<script type="application/ld\+json">(.*?)</script>', page, re.DOTALL)
    lesson, data = json.loads(found[1])["@graph"]
    assert (lesson["@type"], lesson["name"], lesson["datePublished"]) == (
        "LearningResource",
        'Costs <b> & "crashes"',
        "2026-11-30",
    )
    assert data["@type"] == "Dataset" and len(data["description"]) >= 50  # what search engines ask of a data set
    home = "https://other.example/notes/lessons/1.7/"
    assert (
        data["distribution"][0]["contentUrl"] == f"{home}data/metrics.csv" and lesson["isBasedOn"]["@id"] == data["@id"]
    )
    assert (site / "lessons/1.7/data/metrics.csv").exists() and 'id="data"' in page
    assert f'<meta property="og:image" content="{home}picture.png">' in page
    assert f'<link rel="canonical" href="{home}">' in page and f'<meta property="og:url" content="{home}">' in page


def test_the_picture_of_a_link_has_the_size_that_the_page_says(site):
    picture = (site / "lessons" / "1.7" / "picture.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", picture[16:24]) == (1200, 630)
