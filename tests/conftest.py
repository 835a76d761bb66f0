"""Tools of the tests: a tiny real lesson, trained once for the whole session, and a way to run build.py."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from chromium import browser, server, site  # noqa: F401 - fixtures for all tests

import build

PROJECT = Path(__file__).parents[1]

# One layer on real plays: a run takes a second beside the four that torch needs to load.
LESSON = """\
id = "1.7"
topic = "Checkpointing"
title = "What a crash costs"
teaches = "What a crash costs"
question = "How much is lost?"
result = "Saving rarely redid {{ rare.final.redone_steps | count }} steps."
status = "published"
date = 2026-11-30
change = ["checkpoint_every"]
headline = "cpu"
seeds = [1, 2]
compare = [["rare", "often"]]

[metric]
name = "redone_steps"
label = "redone steps"
unit = "steps"
better = "lower"

[base]
corpus = "shakespeare"
dropout = 0.1
kills = 1

[profiles.cpu]
layers = 1
heads = 2
width = 32
context = 32
batch = 2
steps = 24
lr = 1e-3
eval_every = 8
eval_tokens = 512

[arms.rare]
label = "saves rarely"
checkpoint_every = 12

[arms.often]
label = "saves often"
checkpoint_every = 2

[arms.straight]
label = "never killed"
role = "control"
also_changes = ["kills"]
kills = 0
checkpoint_every = 12

[[charts]]
kind = "curve"
metric = "val_loss"
title = "Validation loss"
y_label = "nats per token"
caption = "Lower is better."

[[charts]]
kind = "progress"
title = "Progress"
y_label = "steps done"
caption = "Each fall is lost work."

[[claims]]
text = "Every arm of a seed ends on the same weights."
holds = "each_seed(rare.final.weights_sha256 == straight.final.weights_sha256)"

[reference]
source = "train.galvyn.xyz"
url = "https://train.galvyn.xyz"
says = "They saw {{ reference.ratio | count }} times."
agrees = "So did we."

[reference.figures]
ratio = 6
"""

PAGE = """\
## What happened

The run that saved rarely redid {{ rare.final.redone_steps | count }} steps, see [the curves](#the-curves).

| arm | loss |
|---|---|
| rare | {{ rare.final.val_loss | loss }} |

With $C$ the time to save, `{{ not read }}`:

$$T = \\sqrt{2 C M}$$
"""

SITE = """\
title = "Learning to train models, in public"
tagline = "Two runs, one change."
base_url = "https://train.example"
author = "somebody"
repository = "https://code.example/train"

[[phases]]
number = 1
title = "Pretrain"
"""


@dataclass
class Content:
    """A content folder of a test's own: lessons, runs, and where its site goes."""

    root: Path
    folder: str = "1.7-checkpointing"

    @property
    def lesson(self) -> Path:
        return self.root / "lessons" / self.folder

    @property
    def toml(self) -> Path:
        return self.lesson / "lesson.toml"

    @property
    def page(self) -> Path:
        return self.lesson / "page.md"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def local(self) -> Path:
        return self.runs / "local" / "1.7" / "cpu"

    @property
    def recorded(self) -> Path:
        return self.runs / "1.7" / "cpu"

    @property
    def site(self) -> Path:
        return self.root / "site"

    @property
    def options(self) -> list[str]:
        return ["--lessons", str(self.root / "lessons"), "--runs", str(self.runs), "--out", str(self.site)]

    def build(self, *arguments: str) -> int:
        """build.py in this process, with relative paths in its messages."""
        os.chdir(self.root)
        return build.main([*arguments, "--lessons", "lessons", "--runs", "runs", "--out", "site"])

    def start(self, *arguments: str, **options) -> subprocess.Popen:
        """build.py in a process of its own."""
        command = [sys.executable, str(PROJECT / "build.py"), *arguments, *self.options]
        return subprocess.Popen(
            command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )

    def copy_lesson(self, lesson_id: str) -> None:
        """The same lesson and its record once more, under another id."""
        shutil.copytree(self.lesson, self.root / "lessons" / lesson_id)
        toml = self.root / "lessons" / lesson_id / "lesson.toml"
        toml.write_text(toml.read_text().replace('id = "1.7"', f'id = "{lesson_id}"'))
        shutil.copytree(self.runs / "1.7", self.runs / lesson_id)

    def edit(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))


def write_content(root: Path, toml: str = LESSON, page: str = PAGE, folder: str = "1.7-checkpointing") -> Content:
    content = Content(root, folder)
    content.lesson.mkdir(parents=True)
    content.toml.write_text(toml)
    content.page.write_text(page)
    (root / "lessons" / "site.toml").write_text(SITE)
    return content


@pytest.fixture(scope="session", autouse=True)
def rendered_pages(tmp_path_factory):
    """Pages that tests render are kept for this session alone."""
    from engine.publishing import stale

    kept, stale.CACHE = stale.CACHE, tmp_path_factory.mktemp("cache")
    yield
    stale.CACHE = kept


@pytest.fixture
def content(tmp_path, monkeypatch) -> Content:
    """The tiny lesson, not trained."""
    monkeypatch.chdir(tmp_path)  # so that a test's os.chdir ends with the test
    return write_content(tmp_path)


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory) -> Content:
    """The tiny lesson with two seeds of every arm trained and recorded. Never changed: tests take copies."""
    content = write_content(tmp_path_factory.mktemp("trained"))
    before = Path.cwd()
    # Runs from a tree with changes are not recorded; while somebody works on the project, its tree has changes.
    os.environ["GIT_DIR"] = str(content.root / "no-repository")
    try:
        assert content.build("--lesson", "1.7", "--run", "--seeds", "1,2") == 0
        assert content.build("--lesson", "1.7", "--record") == 0
    finally:
        os.chdir(before)
        del os.environ["GIT_DIR"]
    return content


@pytest.fixture
def trained(trained_once, tmp_path, monkeypatch) -> Content:
    """A copy of the trained lesson, recorded and local runs included."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "content"
    shutil.copytree(trained_once.root, root)
    return Content(root)


@pytest.fixture
def recorded(trained) -> Content:
    """The same as a fresh clone has it: recorded runs, no local ones, no site."""
    shutil.rmtree(trained.runs / "local")
    shutil.rmtree(trained.site)
    return trained
