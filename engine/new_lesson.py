"""A lesson folder to start from: it checks, trains and builds as it stands."""

import datetime
import json
import re
from pathlib import Path

from engine.errors import UserError, problem, shown
from engine.lesson import Lesson

TOML = """\
id = {id}
topic = {title}
title = {title}
teaches = "What this lesson teaches, in one line"
question = "What happens if the learning rate is doubled?"
# One sentence made from the numbers; expressions go between double braces.
result = "The second run ended {{{{ diff(\\"val_loss\\").mean | loss }}}} nats from the first."
status = "published"
date = {date}
change = ["lr"]  # the one setting that differs between the compared arms
headline = "cpu"
seeds = [1, 2, 3, 4, 5]
compare = [["usual", "changed"]]

[metric]
name = "val_loss"
label = "validation loss"
unit = "nats per token"
better = "lower"

[base]
corpus = "shakespeare"
warmup = 20
checkpoint_every = 100

# A laptop: two cores, minutes. Start small; every setting is in engine/lesson.py.
[profiles.cpu]
layers = 2
heads = 2
width = 64
context = 64
batch = 8
steps = 300
eval_every = 50
eval_tokens = 8192

[arms.usual]
label = "usual"
lr = 1e-3

[arms.changed]
label = "changed"
lr = 2e-3

[[charts]]
kind = "curve"
metric = "val_loss"
title = "Validation loss"
y_label = "validation loss, nats per token"
from_step = 50
caption = "What to look at."

# Commit the claims before you train: at least one should be able to fail.
[[claims]]
text = "Both runs learned: they ended below the loss of guessing, the logarithm of the vocabulary's size."
holds = "usual.final.val_loss < ln(256) and changed.final.val_loss < ln(256)"
"""

PAGE = """\
## Guess first

Say what the reader should predict before scrolling.

## What happened

The usual run ended at {{ usual.final.val_loss | loss }}, the changed one at {{ changed.final.val_loss | loss }}.
Another seed alone moves the loss by {{ usual.final.val_loss.sd | loss }}.

## Why

Say why, in plain words.
"""


def make_lesson(lesson_id: str, title: str, lessons_folder: Path, existing: list[Lesson]) -> Path:
    """The new folder's path. UserError if the id is no id or is taken; nothing is overwritten."""
    if not re.fullmatch(r"[1-9][0-9]*\.[1-9][0-9]*", lesson_id):
        raise UserError(problem(f"--new {lesson_id}", "not a lesson's id", expected="phase and number, e.g. 1.10", next="type the id first, then the title"))  # fmt: skip
    taken = next((lesson for lesson in existing if lesson.id == lesson_id), None)
    words = "-".join(re.findall(r"\w+", title.lower())) or "untitled"
    folder = lessons_folder / f"{lesson_id}-{words}"
    if taken or folder.exists():
        raise UserError(problem(f"--new {lesson_id}", "there is such a lesson already", got=shown(taken.folder if taken else folder), next="choose another id"))  # fmt: skip
    folder.mkdir(parents=True)
    quoted = json.dumps(title, ensure_ascii=False)  # a JSON string is a TOML string
    date = datetime.date.today().isoformat()
    (folder / "lesson.toml").write_text(
        TOML.format(id=json.dumps(lesson_id), title=quoted, date=date), encoding="utf-8"
    )
    (folder / "page.md").write_text(PAGE, encoding="utf-8")
    return folder
