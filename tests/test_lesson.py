"""lesson.toml: every mistake is told with its line, all at once, and nothing is trained or built."""

import pytest
from conftest import LESSON

from engine.lesson import id_key, load_lesson, load_lessons

TOML = "lessons/1.7-checkpointing/lesson.toml"


def line_of(text: str, toml: str = LESSON) -> int:
    return toml[: toml.index(text)].count("\n") + 1


def errors_of(content, capsys) -> str:
    assert content.build("--check") == 1
    return capsys.readouterr().err.removesuffix("\n")


def test_the_layers_come_out_as_settings(content):
    lesson = load_lesson(content.lesson)
    cpu = lesson.settings["cpu"]
    assert (cpu["rare"].checkpoint_every, cpu["often"].checkpoint_every) == (12, 2)
    assert (cpu["rare"].kills, cpu["straight"].kills) == (1, 0)
    assert cpu["rare"].stated() == {
        "corpus": "shakespeare", "layers": 1, "heads": 2, "width": 32, "context": 32, "dropout": 0.1, "steps": 24, "batch": 2,
        "lr": 1e-3, "eval_every": 8, "eval_tokens": 512, "checkpoint_every": 12, "kills": 1,
    }  # fmt: skip
    assert lesson.changed_settings == ["checkpoint_every", "kills"]


def test_lines_are_right_behind_an_array_over_several_lines(content, capsys):
    changed = LESSON.replace('compare = [["rare", "often"]]', 'compare = [\n  ["rare", "often"],\n]').replace(
        "steps = 24", 'steps = "24"'
    )
    content.toml.write_text(changed)
    assert f"{TOML}:{line_of('steps =', changed)} profiles.cpu.steps: wrong value" in errors_of(content, capsys)


def test_a_profiles_arm_overrides_the_arm(content):
    content.toml.write_text(LESSON + "\n[profiles.cpu.arms.rare]\ncheckpoint_every = 6\n")
    assert load_lesson(content.lesson).settings["cpu"]["rare"].checkpoint_every == 6


def test_ids_sort_as_numbers():
    assert sorted(["1.10", "2.1", "1.9"], key=id_key) == ["1.9", "1.10", "2.1"]


CASES = {
    "unknown setting": (
        "lr = 1e-3", "lr = 1e-3\nbacth = 2",
        "{toml}:{line} profiles.cpu.bacth: unknown key\n  got:      bacth\n  expected: batch\n  next:     rename the key or take it out",
        "bacth",
    ),
    "unknown key of an arm": (
        'role = "control"', 'rolle = "control"',
        "{toml}:{line} arms.straight.rolle: unknown key\n  got:      rolle\n  expected: one of {settings}\n  next:     rename the key or take it out",
        "rolle",
    ),
    "unknown key of the lesson": (
        'topic = "Checkpointing"', 'topic = "Checkpointing"\ntitel = "x"',
        "{toml}:{line} titel: unknown key\n  got:      titel\n  expected: title\n  next:     rename the key or take it out",
        "titel",
    ),
    "missing key": (
        'question = "How much is lost?"\n', "",
        "{toml}:1 question: missing key\n  expected: question = …\n  next:     add the key",
        'id = "1.7"',
    ),
    "wrong type": (
        "steps = 24", 'steps = "24"',
        "{toml}:{line} profiles.cpu.steps: wrong value\n  got:      '24'\n  expected: Input should be a valid integer\n  next:     mend the value",
        'steps = "24"',
    ),
    "a number as id": (
        'id = "1.7"', "id = 1.7",
        "{toml}:1 id: wrong value\n  got:      1.7\n  expected: Input should be a valid string\n  next:     mend the value",
        "id = 1.7",
    ),
    "out of range": (
        "eval_every = 8", "eval_every = 0",
        "{toml}:{line} profiles.cpu.eval_every: wrong value\n  got:      0\n  expected: Input should be greater than or equal to 1\n  next:     mend the value",
        "eval_every = 0",
    ),
    "an undeclared difference": (
        "checkpoint_every = 2\n", "checkpoint_every = 2\nlr = 2e-3\n",
        "{toml}:{line} arms.often in profile cpu: differs from arm rare in a setting that is not declared\n  got:      lr = 0.002, where rare has 0.001\n  expected: no difference but in checkpoint_every\n  next:     make them equal, or name \"lr\" in change or in the arm's also_changes",
        "[arms.often]",
    ),
    "an arm that does not exist": (
        'compare = [["rare", "often"]]', 'compare = [["rare", "offen"]]',
        "{toml}:{line} compare: no such arm\n  got:      offen\n  expected: often\n  next:     rename it",
        "compare",
    ),
    "settings that do not fit together": (
        "heads = 2", "heads = 3",
        "{toml}:{line} profiles.cpu: wrong value\n  expected: width 32 is not a multiple of heads 3\n  next:     mend the value",
        "[profiles.cpu]",
    ),
    "a missing setting": (
        "lr = 1e-3\n", "",
        "{toml}:{line} profiles.cpu: missing key\n  expected: lr = …\n  next:     add the key",
        "[profiles.cpu]",
    ),
    "an arm that is no name": (
        "[arms.often]", '[arms."../often"]',
        "{toml}:{line} arms.../often.[key]: wrong value\n  got:      '../often'\n  expected: String should match pattern '^[a-z][a-z0-9_]*$'\n  next:     mend the value",
        '[arms."../often"]',
    ),
    "a metric that is none": (
        'name = "redone_steps"', 'name = "val_los"',
        "{toml}:{line} metric.name: wrong value\n  got:      'val_los'\n  expected: Input should be 'val_loss', 'val_bpb', 'train_loss',",
        'name = "val_los"',
    ),
    "a sweep that is not there": (
        'kind = "progress"', 'kind = "sweep"',
        "{toml}:{line} charts.1: there is no [sweep] to draw\n  next:     add [sweep], or choose another kind",
        '[[charts]]\nkind = "sweep"',
    ),
    "a chart of a number that it cannot show": (
        'kind = "progress"', 'kind = "bars"\nmetric = "grad_norm"',
        "{toml}:{line} charts.1: wrong value\n  expected: a chart of kind bars cannot show grad_norm: choose val_loss, val_bpb, train_loss, redone_steps,",
        '[[charts]]\nkind = "bars"',
    ),
    "a change that changes nothing": (
        "checkpoint_every = 2\n", "checkpoint_every = 12\n",
        "{toml}:{line} change in profile cpu: arms rare and often do not differ in it\n  got:      checkpoint_every = 12 in both\n  next:     give one of them another value",
        "change = ",
    ),
    "a negative seed": (
        "seeds = [1, 2]", "seeds = [-1]",
        "{toml}:{line} seeds.0: wrong value\n  got:      -1\n  expected: Input should be greater than or equal to 0\n  next:     mend the value",
        "seeds = ",
    ),
    "half-written": (
        'caption = "Each fall is lost work."', 'caption = "Each fall is',
        "{toml}:{line}: this is not valid TOML\n  got:      Illegal character '\\n'\n  next:     mend the line",
        'caption = "Each fall is',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_told_with_its_line(content, capsys, name):
    old, new, message, place = CASES[name]
    changed = LESSON.replace(old, new, 1)
    content.toml.write_text(changed)
    from engine.lesson import Settings

    expected = message.format(
        toml=TOML, line=line_of(place, changed), settings=", ".join(sorted(Settings.model_fields))
    )
    assert expected in errors_of(content, capsys)


def test_all_problems_of_all_lessons_come_together(content, capsys):
    content.edit(content.toml, "steps = 24", "steps = -1")
    content.edit(content.toml, "eval_every = 8", "eval_evry = 8")
    other = content.root / "lessons" / "1.8-other"
    other.mkdir()
    (other / "lesson.toml").write_text("half")
    errors = errors_of(content, capsys)
    assert errors.count("\n  next:") == 3
    for part in (
        "profiles.cpu.steps: wrong value",
        "profiles.cpu.eval_evry: unknown key",
        "1.8-other/lesson.toml:1: this is not valid TOML",
    ):
        assert part in errors


def test_an_id_used_twice_names_both_folders(content, capsys):
    other = content.root / "lessons" / "1.7-again"
    other.mkdir()
    (other / "lesson.toml").write_text(LESSON)
    (other / "page.md").write_text("x")
    assert errors_of(content, capsys) == (
        f"{TOML}:1 id: this id is used twice\n"
        '  got:      "1.7", as in lessons/1.7-again/lesson.toml:1 id\n'
        "  next:     give one of the two lessons another id"
    )


def test_a_missing_page_is_told(content, capsys):
    content.page.unlink()
    assert (
        errors_of(content, capsys)
        == "lessons/1.7-checkpointing/page.md: missing\n  next:     write the lesson's prose there"
    )


def test_a_page_without_a_spec_is_told(content, capsys):
    (content.root / "lessons" / "1.8-new").mkdir()
    (content.root / "lessons" / "1.8-new" / "page.md").write_text("x")
    assert (
        errors_of(content, capsys)
        == "lessons/1.8-new: a page without lesson.toml\n  next:     write lesson.toml beside page.md"
    )


def test_an_unreadable_spec_is_told(content, capsys):
    content.toml.write_bytes(b"\xff\xfe")
    assert errors_of(content, capsys) == (
        f"{TOML}: not UTF-8 text\n  got:      'utf-8' codec can't decode byte 0xff in position 0: invalid start byte\n  next:     save the file as UTF-8"
    )


def test_a_missing_lessons_folder_is_told(tmp_path, monkeypatch, capsys):
    import build

    monkeypatch.chdir(tmp_path)
    assert build.main(["--check"]) == 1
    assert (
        capsys.readouterr().err == "lessons: no such folder\n  next:     name the lessons' folder with --lessons DIR\n"
    )


def test_this_projects_own_lessons_are_valid():
    from conftest import PROJECT

    assert [lesson.id for lesson in load_lessons(PROJECT / "lessons")]
