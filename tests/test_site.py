"""The built site: complete, checked before it is written, the same bytes each time."""

import gzip
import json
import os
import re
import shutil
import stat
import subprocess

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from conftest import LESSON, PAGE

from engine.publishing import site, stale
from engine.runs import Run, file_hash

OF_EVERY_SITE = {
    ".made-by-lesson-lab", "index.html", "404.html", "phases/1/index.html", "colophon/index.html", "feed.xml", "sitemap.xml", "robots.txt", "llms.txt", "assets/favicon.svg", "assets/style.css", "assets/page.js", "assets/vega.js", "assets/search.js", "assets/explainer.js", "search/index.html",
}  # fmt: skip


def snapshot(folder) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def without_search_index(files: dict[str, bytes]) -> dict[str, bytes]:
    """Pagefind names its files by their content."""
    return {address: content for address, content in files.items() if not address.startswith("pagefind/")}


def page_of(content) -> str:
    return (content.site / "lessons" / "1.7" / "index.html").read_text()


def test_the_site_holds_every_page_and_the_published_data(recorded):
    assert recorded.build("--site-only") == 0
    files = without_search_index(snapshot(recorded.site))
    runs = [f"{arm}-s{seed}" for arm in ("often", "rare", "straight") for seed in (1, 2)]
    names = ("config.json", "events.parquet", "metrics.parquet", "summary.json")
    data = {f"lessons/1.7/data/{run}/{name}" for run in runs for name in names}
    own = {f"lessons/1.7/{name}" for name in ("index.html", "charts.js", "picture.png", "data/metrics.csv")}
    assert files.keys() == data | own | OF_EVERY_SITE
    metrics = recorded.recorded / "often-s1" / "metrics.parquet"
    assert files["lessons/1.7/data/often-s1/metrics.parquet"] == metrics.read_bytes()


def test_two_builds_are_byte_identical(recorded):
    assert recorded.build("--site-only") == 0
    first = snapshot(recorded.site)
    shutil.rmtree(recorded.site)
    assert recorded.build("--site-only") == 0
    assert snapshot(recorded.site) == first


def test_the_page_is_whole_without_javascript(recorded):
    recorded.build("--site-only")
    page = page_of(recorded)
    assert (
        page.count('<svg role="img" aria-labelledby=') == 5
    )  # a wide and a narrow drawing of two charts, one strip of seeds
    redone = json.loads((recorded.recorded / "rare-s1" / "summary.json").read_text())["redone_steps"]
    assert 'redid <span class="number">' in page and str(redone) in page
    assert "<math" in page and "<code>{{ not read }}</code>" in page
    assert "git commit" in page and "settings (sha256)" in page and "AMD" in page or "processor" in page


def test_files_are_world_readable_and_no_links(recorded):
    recorded.build("--site-only")
    for path in [recorded.site, *recorded.site.rglob("*")]:
        status = path.lstat()
        assert not stat.S_ISLNK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == (0o755 if path.is_dir() else 0o644)
        assert path.is_dir() or status.st_nlink == 1


def test_links_are_relative_but_those_of_404(recorded):
    assert recorded.build("--site-only", "--base-url", "https://other.example/notes/") == 0
    for path in recorded.site.rglob("*.html"):
        targets = re.findall(r'(?:href|src)="([^"]*)"', path.read_text())
        inside = [target for target in targets if not re.match(r"https?:|data:", target)]
        assert not [target for target in inside if target.startswith("/")]
        canonical = re.search(r'rel="canonical" href="([^"]*)"', path.read_text())[1]
        assert canonical.startswith("https://other.example/notes/")
    assert 'href="https://other.example/notes/assets/style.css"' in (recorded.site / "404.html").read_text()


def test_a_failed_build_leaves_the_old_site_as_it_was(recorded, capsys):
    recorded.build("--site-only")
    before = snapshot(recorded.site)
    recorded.edit(recorded.page, "The run", "The {{ nobody.final | loss }} run")
    assert recorded.build("--site-only") == 1
    assert snapshot(recorded.site) == before
    assert not [path for path in recorded.root.iterdir() if path.name.startswith(".site")]


def test_all_problems_of_a_page_come_together(recorded, capsys):
    recorded.page.write_text("Ended at 2.1, {{ rarre.final.val_loss | loss }}.\n")
    recorded.edit(recorded.toml, 'caption = "Lower is better."', 'caption = "Lower than 3."')
    recorded.edit(recorded.toml, "weights_sha256 == straight", "weights_sha256 != straight")
    assert recorded.build("--site-only") == 1
    errors = capsys.readouterr().err
    for part in (
        "page.md:1: a number typed into prose",
        "page.md:1: undefined name",
        "charts.0.caption: a number typed into prose",
        "claims.0.holds: the claim is false",
    ):
        assert part in errors


def test_a_false_claim_names_both_numbers(recorded, capsys):
    claim = 'holds = "each_seed(rare.final.weights_sha256 == straight.final.weights_sha256)"'
    recorded.edit(recorded.toml, claim, 'holds = "rare.final.kills < straight.final.kills"')
    assert recorded.build("--site-only") == 1
    line = recorded.toml.read_text()[: recorded.toml.read_text().index("holds =")].count("\n") + 1
    assert capsys.readouterr().err == (
        f"lessons/1.7-checkpointing/lesson.toml:{line} claims.0.holds: the claim is false: Every arm of a seed ends on the same weights.\n"
        "  got:      1 is not < 0\n"
        "  expected: rare.final.kills < straight.final.kills\n"
        "  next:     correct the claim and the prose: the runs are what they are\n"
    )


def test_stale_runs_stop_the_build_and_say_what_would_refresh_them(recorded, capsys):
    recorded.edit(recorded.toml, "checkpoint_every = 2\n", "checkpoint_every = 3\n")
    assert recorded.build("--site-only") == 1
    message = (
        "runs/1.7/cpu/often-s{0}: stale: it was made with other settings than the lesson's\n"
        "  got:      checkpoint_every: 2 -> 3\n"
        "  next:     python build.py --lesson 1.7 --run --fresh --seeds {0} --arm often && python build.py --lesson 1.7 --record\n"
    )
    assert capsys.readouterr().err == message.format(1) + message.format(2)


def test_a_new_setting_with_a_default_stales_nothing(recorded):
    for path in recorded.recorded.glob("*/config.json"):
        assert "eval_every" in json.loads(path.read_text())["settings"]
        assert "lr_final_share" not in json.loads(path.read_text())["settings"]
    assert recorded.build("--check") == 0


def test_a_missing_run_of_the_record_is_told(recorded, capsys):
    shutil.rmtree(recorded.recorded / "often-s2")
    assert recorded.build("--check") == 1
    line = LESSON[: LESSON.index("seeds =")].count("\n") + 1
    assert capsys.readouterr().err == (
        f"lessons/1.7-checkpointing/lesson.toml:{line} seeds: runs are missing from the record\n  got:      often-s2\n"
        "  next:     python build.py --lesson 1.7 --run --fresh --seeds 2 --arm often && python build.py --lesson 1.7 --record\n"
    )


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (
            "../1.9/index.html",
            "the link ../1.9/index.html leads to no page or file of the site\n  got:      lessons/1.9/index.html",
        ),
        (
            "#the-curve",
            "the link #the-curve leads to a place that the page does not have\n  got:      #the-curve on lessons/1.7/index.html",
        ),
        ("../../INDEX.html", "the link ../../INDEX.html leads to no page or file of the site\n  got:      INDEX.html"),
    ],
)
def test_a_dead_link_fails_the_build_with_its_line(recorded, capsys, link, message):
    recorded.page.write_text(PAGE + f"\nSee [there]({link}).\n")
    assert recorded.build("--site-only") == 1
    assert (
        capsys.readouterr().err
        == f"lessons/1.7-checkpointing/page.md:{PAGE.count(chr(10)) + 2}: {message}\n  next:     mend the link\n"
    )


def test_a_non_finite_number_in_a_chart_is_told(recorded, capsys):
    folder = recorded.recorded / "often-s1"
    table = pq.read_table(folder / "metrics.parquet")
    values = [
        float("nan") if step == 16 else value
        for step, value in zip(table["step"].to_pylist(), table["val_loss"].to_pylist(), strict=True)
    ]
    column = table.schema.get_field_index("val_loss")
    pq.write_table(
        table.set_column(column, table.schema.field(column), pa.array(values, pa.float32())), folder / "metrics.parquet"
    )
    summary = json.loads((folder / "summary.json").read_text())
    summary["files_sha256"]["metrics.parquet"] = file_hash(folder / "metrics.parquet")
    (folder / "summary.json").write_text(json.dumps(summary))
    assert recorded.build("--site-only") == 1
    assert capsys.readouterr().err == (
        "runs/1.7/cpu/often-s1/metrics.parquet: a number that cannot be drawn\n  got:      nan at step 16\n"
        "  expected: finite numbers\n  next:     train the run anew with --fresh, then --record it\n"
    )


def test_titles_are_text_everywhere(recorded):
    evil = "</script><b>&\\\"'"
    for old in (
        'title = "Validation loss"',
        'label = "saves often"',
        'title = "What a crash costs"',
        'y_label = "nats per token"',
    ):
        recorded.edit(recorded.toml, old, old.split(" = ")[0] + f' = "{evil}"')
    assert recorded.build("--site-only") == 0
    for path in ("index.html", "lessons/1.7/index.html"):
        page = (recorded.site / path).read_text()
        assert "<b>" not in page and "&lt;/script&gt;&lt;b&gt;&amp;" in page
    raw = (recorded.site / "lessons" / "1.7" / "charts.js").read_text()
    assert "<" not in raw and "</script><b>&\\\"'" in json.dumps(charts_of(recorded))


def test_a_folder_with_somebody_elses_files_is_not_replaced(recorded, capsys):
    recorded.site.mkdir()
    (recorded.site / "thesis.tex").write_text("years of work")
    assert recorded.build("--site-only") == 1
    assert capsys.readouterr().err == (
        "site: this folder holds files that are not ours, so it is not replaced\n"
        "  expected: an empty folder, or one with .made-by-lesson-lab in it\n  next:     name another folder with --out DIR\n"
    )
    assert (recorded.site / "thesis.tex").read_text() == "years of work"


def test_a_deleted_lesson_leaves_nothing_behind(recorded):
    recorded.build("--site-only")
    shutil.rmtree(recorded.lesson)
    assert recorded.build("--site-only") == 0
    files = snapshot(recorded.site)
    assert without_search_index(files).keys() == OF_EVERY_SITE
    fragments = [gzip.decompress(content) for address, content in files.items() if address.endswith(".pf_fragment")]
    assert [content for content in fragments if b"lessons/1.7" in content] == []


def test_an_edited_lesson_is_built_as_a_clean_build_would(recorded):
    recorded.build("--site-only")
    recorded.edit(recorded.page, "The run", "A run")
    assert recorded.build("--site-only") == 0
    incremental = snapshot(recorded.site)
    assert "A run that saved rarely" in page_of(recorded)
    forget_everything(recorded)
    assert recorded.build("--site-only") == 0
    assert snapshot(recorded.site) == incremental


def test_lessons_that_did_not_change_are_moved_into_the_new_site_and_moved_back_if_that_fails(
    recorded, monkeypatch, capsys
):
    recorded.copy_lesson("1.9")
    recorded.build("--site-only")
    other = recorded.site / "lessons" / "1.9" / "index.html"
    before, inode = snapshot(recorded.site), other.stat().st_ino
    recorded.edit(recorded.page, "The run", "A run")
    real = os.replace

    failed = []

    def fails_at_the_last_step(source, target):
        if str(target) == "site" and not failed:
            failed.append(target)
            raise OSError(28, "No space left on device", "site")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails_at_the_last_step)
        assert recorded.build("--site-only") == 1
    assert "the old site is unchanged" in capsys.readouterr().err
    assert snapshot(recorded.site) == before
    assert recorded.build("--site-only") == 0
    assert other.stat().st_ino == inode and "A run that saved rarely" in page_of(recorded)
    incremental = snapshot(recorded.site)
    forget_everything(recorded)
    assert recorded.build("--site-only") == 0
    assert snapshot(recorded.site) == incremental


def forget_everything(content):
    """As on a machine that never built this site."""
    shutil.rmtree(content.site)
    shutil.rmtree(stale.CACHE / "pages")


def test_where_nothing_changed_nothing_is_built(recorded, monkeypatch, capsys):
    recorded.build("--site-only")
    said = capsys.readouterr()
    monkeypatch.setattr(site, "gather", None)  # a call would raise
    assert recorded.build("--site-only") == 0
    assert capsys.readouterr() == said


def test_a_page_that_somebody_changed_in_the_output_is_put_right(recorded):
    recorded.build("--site-only")
    right = page_of(recorded)
    (recorded.site / "lessons" / "1.7" / "index.html").write_text("scribble")
    assert recorded.build("--site-only") == 0
    assert page_of(recorded) == right


@pytest.mark.parametrize("part", ["source", "a package"])
def test_an_edit_of_a_template_or_another_package_renders_the_pages_anew(recorded, monkeypatch, part):
    recorded.build("--site-only")
    rendered = []
    monkeypatch.setattr(site, "_render_all", lambda jobs: rendered.extend(jobs) or [site.render(job) for job in jobs])
    assert recorded.build("--site-only") == 0
    assert not rendered
    stale.source_hash.cache_clear()
    if part == "source":
        real = stale._file_hash
        monkeypatch.setattr(stale, "_file_hash", lambda path: "edited" if path.name == "style.css" else real(path))
    else:
        real = stale.importlib.metadata.version
        monkeypatch.setattr(stale.importlib.metadata, "version", lambda name: "99" if name == "altair" else real(name))
    assert recorded.build("--site-only") == 0
    stale.source_hash.cache_clear()
    assert [lesson.id for _, lesson, *_ in rendered] == ["1.7"]


def test_a_file_that_changes_while_its_page_is_rendered_stops_the_build_and_is_not_remembered(
    recorded, monkeypatch, capsys
):
    real = site.render

    def slow(job):
        rendered = real(job)
        recorded.page.write_text(recorded.page.read_text() + "\nWritten meanwhile.\n")
        return rendered

    with monkeypatch.context() as patch:
        patch.setattr(site, "render", slow)
        assert recorded.build("--site-only") == 1
    assert capsys.readouterr().err == (
        "lessons/1.7-checkpointing/page.md: changed while the site was built\n  next:     run the same command again\n"
    )
    assert recorded.build("--site-only") == 0
    assert "Written meanwhile." in page_of(recorded)


def test_a_damaged_page_in_the_cache_is_rendered_anew(recorded):
    recorded.build("--site-only")
    right = page_of(recorded)
    kept = next((stale.CACHE / "pages").glob("*/*/index.html"))
    kept.write_text(kept.read_text()[:-100])
    shutil.rmtree(recorded.site)
    assert recorded.build("--site-only") == 0
    assert page_of(recorded) == right


def test_many_lessons_are_rendered_by_several_processes_to_the_same_pages(recorded):
    recorded.build("--site-only")
    alone = page_of(recorded)
    for number in range(8, 13):
        recorded.copy_lesson(f"1.{number}")
    assert recorded.build("--site-only") == 0
    assert (recorded.site / "lessons" / "1.12" / "data" / "metrics.csv").exists()
    without_neighbours = lambda page: re.sub(r"<nav class=\"neighbours\".*?</nav>", "", page, flags=re.DOTALL)
    assert without_neighbours(page_of(recorded)) == without_neighbours(alone)


def test_lessons_lead_to_the_ones_before_and_after_them_in_number_order(recorded):
    for lesson_id in ("1.9", "1.10"):
        recorded.copy_lesson(lesson_id)
    recorded.build("--site-only")
    links = re.findall(
        r'<a(?: class="next")? href="../([\d.]+)/index.html"><small>(\w+)',
        (recorded.site / "lessons" / "1.9" / "index.html").read_text(),
    )
    assert links == [("1.7", "Previous"), ("1.10", "Next")]


def test_the_home_page_shows_the_latest_note_first_and_what_is_only_announced(recorded):
    recorded.copy_lesson("1.9")
    newer = recorded.root / "lessons" / "1.9" / "lesson.toml"
    newer.write_text(newer.read_text().replace("date = 2026-11-30", "date = 2026-12-01"))
    toml = recorded.root / "lessons" / "site.toml"
    toml.write_text(
        toml.read_text() + 'announced = [{ id = "1.8", topic = "Break it", teaches = "Failures on sight" }]\n'
    )
    recorded.build("--site-only")
    home = (recorded.site / "index.html").read_text()
    latest, plan = home.split('<h2 id="plan">')
    assert re.findall(r'<h3><a href="lessons/([\d.]+)/', latest) == ["1.9", "1.7"]
    assert latest.count("<svg aria-hidden") == 2 and latest.count("Saving rarely redid") == 2
    assert re.findall(r'<span class="id">([\d.]+)</span>', plan) == ["1.7", "1.8", "1.9"]
    assert 'Break it<span class="state">announced</span>' in plan and plan.count(">published</span>") == 2
    assert re.findall(r'<span class="id">([\d.]+)</span>', (recorded.site / "phases/1/index.html").read_text()) == [
        "1.7",
        "1.8",
        "1.9",
    ]


def test_your_own_curves_lie_over_the_recorded_ones(trained):
    trained.build("--lesson", "1.7")
    page = page_of(trained)
    assert "Thin lines in the colour of the text are your own runs." in page
    charts = charts_of(trained)
    assert [line["seed"] for line in charts["chart-0"]["lines"] if line["line"] == "mine"] == [1, 2] * 3
    trained.build("--site-only")
    assert "your own runs" not in page_of(trained)


def charts_of(content) -> dict:
    """What charts.js holds, read strictly: no NaN, no infinity."""
    text = (content.site / "lessons" / "1.7" / "charts.js").read_text()
    refuse = lambda constant: pytest.fail(f"{constant} in charts.js")
    return json.loads(text.removeprefix("window.lessonCharts = ").removesuffix(";\n"), parse_constant=refuse)


def test_the_csv_holds_every_logged_row_of_every_run(recorded):
    recorded.build("--site-only")
    table = pyarrow.csv.read_csv(recorded.site / "lessons" / "1.7" / "data" / "metrics.csv")
    assert table.column_names[:3] == ["arm", "seed", "step"]
    assert table.num_rows == 6 * 25


def test_a_picture_of_the_lessons_folder_is_published_with_its_caption(recorded):
    (recorded.lesson / "a picture.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    recorded.page.write_text(
        recorded.page.read_text() + '\n![Two lines](./a%20picture.svg "<b> {{ rare.settings.lr | plain }}")\n'
    )
    assert recorded.build("--site-only") == 0
    assert (recorded.site / "lessons/1.7/a picture.svg").read_text().startswith("<svg")
    figure = '<figure><img src="./a%20picture.svg" alt="Two lines" loading="lazy" /><figcaption>&lt;b&gt; 0.001</figcaption></figure>'
    assert figure in page_of(recorded)


def test_a_lesson_cannot_reach_outside_its_folder_or_over_its_own_data(recorded, tmp_path, capsys):
    outside = tmp_path / "outside.png"
    outside.write_text("mine")
    (recorded.lesson / "data").mkdir()
    (recorded.lesson / "data" / "metrics.csv").write_text("not from the runs")
    text = recorded.page.read_text()
    recorded.page.write_text(f"{text}\n[all](data/metrics.csv)\n")
    assert recorded.build("--site-only") == 0
    assert "not from the runs" not in (recorded.site / "lessons/1.7/data/metrics.csv").read_text()
    for target in (str(outside), "../../../outside.png"):
        recorded.page.write_text(f"{text}\n![a]({target})\n")
        assert recorded.build("--site-only") == 1
        assert "leads to no page or file of the site" in capsys.readouterr().err
    assert outside.read_text() == "mine"


def test_a_control_character_in_a_text_is_refused(recorded, capsys):
    recorded.edit(recorded.toml, 'label = "saves often"', 'label = "saves\\u0007 often"')
    assert recorded.build("--site-only") == 1
    line = recorded.toml.read_text().splitlines().index('label = "saves\\u0007 often"') + 1
    assert capsys.readouterr().err == (
        f"lessons/1.7-checkpointing/lesson.toml:{line} arms.often.label: a control character in a text\n"
        "  got:      'saves\\x07 often'\n  next:     take it out\n"
    )


def test_what_a_model_wrote_is_shown_as_text(recorded, monkeypatch):
    wrote = "<b>\x00\x1b[31m</script>\u202egnp.exe \u05d0 a\n b"
    monkeypatch.setattr(
        Run, "samples", [{"step": 8, "prompt": "O ", "text": wrote}, {"step": 24, "prompt": "O ", "text": "day"}]
    )
    recorded.edit(recorded.toml, "[base]", '[base]\nsample_prompts = ["O "]')
    monkeypatch.setattr("engine.publishing.choose.staleness", lambda *_: [])
    assert recorded.build("--site-only") == 0
    page = page_of(recorded)
    assert (
        page.count(
            '<p class="sample"><bdi><b>O </b>&lt;b&gt;\ufffd\ufffd[31m&lt;/script&gt;\u202egnp.exe \u05d0 a\n b</bdi></p>'
        )
        == 3
    )
    assert page.index('data-step="8"') < page.index('data-step="24"')


def test_other_recorded_profiles_are_shown_as_panels(recorded):
    profile = recorded.toml.read_text().split("[profiles.cpu]")[1].split("[arms.rare]")[0]
    recorded.edit(recorded.toml, "[arms.rare]", f"[profiles.big]{profile}\n[arms.rare]")
    for run in recorded.recorded.glob("*-s1"):
        shutil.copytree(run, recorded.runs / "1.7" / "big" / run.name)
    assert recorded.build("--site-only") == 0
    page = page_of(recorded)
    assert "Profile big: cannot tell: saves often minus saves rarely is " in page
    assert 'id="big-chart-0"' in page and "big-chart-0" in charts_of(recorded)
    assert (recorded.site / "lessons/1.7/data/big/often-s1/metrics.parquet").exists()


def test_without_a_record_the_page_is_a_draft_of_the_local_runs(trained):
    shutil.rmtree(trained.recorded)
    assert trained.build("--site-only") == 0
    assert "Draft: nothing is recorded yet" in page_of(trained)


def test_without_any_run_the_site_is_built_and_says_what_to_type(content, capsys):
    assert content.build("--site-only") == 0
    assert capsys.readouterr().err == (
        "lesson 1.7 has no page yet: no seed has a finished run of every arm. Train them: python build.py --lesson 1.7 --run\n"
    )
    assert not (content.site / "lessons").exists()


def test_your_runs_are_held_against_the_record(trained, capsys):
    assert trained.build("--lesson", "1.7", "--run") == 0
    out = capsys.readouterr().out
    for arm in ("often", "rare", "straight"):
        assert f"{arm}-s1: matched the record: the same weights, to the last bit\n" in out
    assert re.search(
        r"the record's verdict: (differs|cannot tell|no difference seen|identical): saves often minus saves rarely is ",
        out,
    )
    assert out.endswith("open site/lessons/1.7/index.html\n")
    assert "often-s1: matched: the same weights" in page_of(trained)


def test_a_run_with_other_weights_on_the_same_machine_does_not_match(trained, capsys):
    path = trained.local / "often-s1" / "summary.json"
    path.write_text(path.read_text().replace('"weights_sha256": "', '"weights_sha256": "0'))
    assert trained.build("--lesson", "1.7", "--run") == 0
    assert (
        "often-s1: DID NOT MATCH the record: other weights than the record, though processor and torch are the same\n"
        in capsys.readouterr().out
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_leaves_the_old_site(recorded, capsys, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True, check=False
    ).returncode:
        pytest.skip("this sandbox mounts nothing")
    try:
        import build

        os.chdir(recorded.root)
        assert build.main(["--site-only", "--lessons", "lessons", "--runs", "runs", "--out", str(disk / "site")]) == 1
        errors = capsys.readouterr().err
        assert (
            "cannot be read or written\n  got:      No space left on device\n  next:     make room or allow access there, then run the same command again\n  note:     the old site is unchanged\n"
            in errors
        )
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)
