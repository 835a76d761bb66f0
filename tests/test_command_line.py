"""build.py: usage, exit codes, what it says."""

import subprocess
import sys

import pytest
from conftest import PROJECT

import build


def test_help_explains_each_command_with_an_example():
    done = subprocess.run(
        [sys.executable, "build.py", "--help"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    for command in (
        "--site-only",
        "--run",
        "--run --fresh",
        "--run --seeds 1,2,3",
        "--run --arm often",
        "--run --profile cpu",
        "--record",
        "--check",
        "--run --resume-inexact",
    ):
        lines = [line for line in done.stdout.split("examples:")[1].splitlines() if command in line]
        assert lines, f"{command} has no example"
    assert "--lessons DIR --runs DIR --out DIR --base-url" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to do: try --site-only, or --lesson 1.7 --run (--help shows all)"),
        (["--run"], "--run needs --lesson, e.g. --lesson 1.7 --run"),
        (["--lesson", "1.7", "--run", "--record"], "--run and --record do not go together: choose one"),
        (["--lesson", "1.7", "--site-only"], "--site-only does not go with --lesson: leave it out"),
        (["--lesson", "1.7", "--fresh"], "--fresh goes with --run"),
        (["--site-only", "--profile", "cpu"], "--profile goes with --run"),
        (["--queue", "1.7", "--price", "1"], "--price goes with --plan"),
        (
            ["--lesson", "1.7", "--run", "--seeds", "one"],
            "argument --seeds: 'one' is no list of seeds: write e.g. 1,2,3",
        ),
        (["--les", "1.7"], "unrecognized arguments: --les 1.7"),
    ],
)
def test_wrong_usage_exits_with_2_and_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit:
        build.main(arguments)
    assert exit.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"build.py: error: {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--lesson", "1.8", "--run"],
            "--lesson 1.8: no such lesson\n  expected: 1.7\n  next:     name one of lessons\n",
        ),
        (
            ["--lesson", "1.7", "--run", "--arm", "oftn"],
            "--arm oftn: lesson 1.7 has no such arm\n  expected: often\n  next:     name one of these\n",
        ),
        (
            ["--lesson", "1.7", "--run", "--profile", "gpu"],
            "--profile gpu: lesson 1.7 has no such profile\n  expected: cpu\n  next:     name one of these\n",
        ),
    ],
)
def test_a_name_that_does_not_exist_names_the_nearest(content, arguments, message, capsys):
    assert content.build(*arguments) == 1
    assert capsys.readouterr().err == message


def test_training_without_torch_says_what_to_install(content, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert content.build("--lesson", "1.7", "--run") == 1
    assert capsys.readouterr().err == (
        "build.py --run: torch is not installed\n  next:     pip install -c constraints.txt -e '.[train]'\n"
    )


def test_check_validates_and_writes_nothing(recorded, capsys):
    assert recorded.build("--check") == 0
    assert capsys.readouterr().out == "1 lessons and 6 runs are good\n"
    assert not recorded.site.exists()


def test_plain_progress_names_kills_and_resumes(trained_once):
    """What a log file of CI shows: no cursor movements."""
    from io import StringIO

    from engine.lesson import load_lesson
    from engine.training.supervise import train_all

    lesson = load_lesson(trained_once.lesson)
    (config,) = lesson.runs("cpu", [1], ["often"])
    out = StringIO()
    train_all([config], {config.name: trained_once.local / config.name}, inexact=False, out=out)
    assert out.getvalue() == "often-s1: finished before, nothing to do\n"


def test_a_folder_without_write_permission_is_told(content, capsys, monkeypatch):
    import engine.runs

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "runs/local/1.7/lock")

    # root may write anywhere, so the refusal is the operating system's in form only
    monkeypatch.setattr(engine.runs.Path, "mkdir", refuse)
    assert content.build("--lesson", "1.7", "--run") == 1
    assert capsys.readouterr().err == (
        "runs/local/1.7/lock: cannot be read or written\n  got:      Permission denied\n"
        "  next:     make room or allow access there, then run the same command again\n"
    )
