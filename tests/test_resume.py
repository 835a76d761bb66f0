"""Killed at any moment, a run goes on to the very same bits. Real processes, real SIGKILLs."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import LESSON, PROJECT

from engine.errors import UserError
from engine.lesson import RunConfig, Settings
from engine.runs import MACHINE_COLUMNS, RunFolder, metric_rows, provenance
from engine.training.tokens import load_text

# Wide enough that writing a checkpoint (15 MB) takes a good part of the time, so that kills can hit it.
SETTINGS = Settings(
    corpus="shakespeare", layers=1, heads=4, width=320, context=16, dropout=0.1, steps=700, batch=2, lr=1e-3, eval_every=50, eval_tokens=256, checkpoint_every=7
)  # fmt: skip


def new_run(folder, settings=SETTINGS, seed=0) -> RunFolder:
    run = RunFolder(folder)
    config = RunConfig("1.7", "cpu", "often", seed, settings)
    run.write_config(config, load_text(settings).data_sha256, provenance(PROJECT))
    return run


def start(run: RunFolder, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "engine.training.loop", str(run.path), *options]
    return subprocess.Popen(
        command,
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finish(run: RunFolder, *options: str) -> str:
    child = start(run, *options)
    errors = child.communicate(timeout=240)[1]
    assert child.returncode == 0, errors
    return errors


def trained_rows(run: RunFolder) -> list[dict]:
    return [
        {key: value for key, value in row.items() if key not in MACHINE_COLUMNS} for row in metric_rows(run.read_log())
    ]


def weights(run: RunFolder) -> str:
    return json.loads(run.summary.read_text())["weights_sha256"]


def count(run: RunFolder, event: str) -> int:
    return sum(one["event"] == event for one in run.read_log())


def wait_until(condition, child, timeout_s=60.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert child.poll() is None, child.stderr.read()
        assert time.monotonic() < end, "it never happened"


def kill_inside_a_write(run: RunFolder, child) -> bool:
    """SIGKILL as soon as a checkpoint's temporary file is seen; whether it was still there afterwards."""
    before = len(run.read_log())
    wait_until(lambda: len(run.read_log()) > before + 1, child)
    wait_until(lambda: any(run.checkpoints.glob("*.tmp")), child)  # the folder itself may not be there yet
    child.kill()
    child.wait()
    return any(name.endswith(".tmp") for name in os.listdir(run.checkpoints))


def kill_at_random(run: RunFolder, child, chance: random.Random) -> None:
    before = len(run.read_log())
    wait_until(lambda: len(run.read_log()) > before + 1, child)
    time.sleep(chance.uniform(0, 0.4))
    child.kill()
    child.wait()


def test_after_20_kills_at_random_points_the_run_ends_on_the_same_bits(tmp_path):
    straight, killed = new_run(tmp_path / "straight"), new_run(tmp_path / "killed")
    uninterrupted = start(straight)
    chance, inside = random.Random(20261130), 0
    for number in range(20):
        child = start(killed)
        if number % 2:
            inside += kill_inside_a_write(killed, child)
        else:
            kill_at_random(killed, child, chance)
    assert not killed.finished
    finish(killed)
    assert uninterrupted.wait(timeout=240) == 0
    assert count(killed, "started") == 21
    assert inside >= 5
    assert weights(killed) == weights(straight)
    assert trained_rows(killed) == trained_rows(straight)
    assert [row["step"] for row in trained_rows(killed)] == list(range(701))


SHORT = SETTINGS.model_copy(update={"steps": 40, "checkpoint_every": 10, "eval_every": 20})


@pytest.fixture(scope="module")
def straight_short(tmp_path_factory) -> RunFolder:
    run = new_run(tmp_path_factory.mktemp("short") / "straight", SHORT)
    finish(run)
    return run


@pytest.fixture(scope="module")
def stopped_once(straight_short) -> RunFolder:
    """As a kill after step 30's checkpoint leaves it: the newest checkpoints are those of 20 and 30."""
    run = new_run(straight_short.path.parent / "stopped", SHORT)
    child = start(run)
    wait_until(lambda: count(run, "checkpoint") >= 3, child)
    child.kill()
    child.wait()
    return run


@pytest.fixture
def stopped(stopped_once, tmp_path, monkeypatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(stopped_once.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def checkpoints_of(run: RunFolder) -> list:
    return sorted(run.checkpoints.glob("*.pt"))


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "zero-filled": lambda data: bytes(len(data)),
    "with one flipped bit": lambda data: (
        data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 1]) + data[len(data) // 3 + 1 :]
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_with_a_warning(stopped, straight_short, name):
    before, newest = checkpoints_of(stopped)
    newest.write_bytes(DAMAGE[name](newest.read_bytes()))
    finish(stopped)
    (warning,) = [event["text"] for event in stopped.read_log() if event["event"] == "warning"]
    assert warning.endswith(f"{newest.name}: damaged, its content is not what was written; going on from {before.name}")
    assert [event["step"] for event in stopped.read_log() if event["event"] == "resumed"] == [20]
    assert weights(stopped) == weights(straight_short)
    assert (stopped.checkpoints / f"{newest.name}.damaged").exists()


def test_two_damaged_checkpoints_say_what_to_type(stopped):
    names = []
    for path in checkpoints_of(stopped):
        path.write_bytes(b"")
        names.append(path.name)
    child = start(stopped)
    errors = child.communicate(timeout=60)[1]
    assert child.returncode == 1
    assert errors.partition(": ")[2] == (
        f"every checkpoint is damaged\n  got:      {names[1]}, {names[0]}\n"
        "  expected: content whose sha256 begins as the file's name says\n"
        "  next:     restore one from a copy, or start over by adding --fresh\n"
    )
    assert [path.name for path in checkpoints_of(stopped)] == names


def test_a_checkpoint_of_another_machine_is_refused_unless_asked_for_and_then_recorded(stopped):
    from engine.training import checkpoint

    state = checkpoint.load(stopped.checkpoints, warn=print)
    state["machine"]["processor"] = "Abacus"
    shutil.rmtree(stopped.checkpoints)
    checkpoint.save(stopped.checkpoints, state["step"], state)
    child = start(stopped)
    errors = child.communicate(timeout=60)[1]
    assert child.returncode == 1
    here = provenance(PROJECT)["processor"]
    assert errors.partition(": ")[2] == (
        "the checkpoint was made on another machine, so the last bits would differ\n"
        f"  got:      processor: Abacus -> {here}\n"
        "  next:     go on there, start over by adding --fresh, or accept it by adding --resume-inexact (the page will say so)\n"
    )
    finish(stopped, "--resume-inexact")
    assert json.loads(stopped.summary.read_text())["resumed_inexactly"] == [f"processor: Abacus -> {here}"]


def test_a_log_shorter_than_its_checkpoint_is_refused(stopped):
    lines = stopped.log.read_bytes().splitlines(keepends=True)
    stopped.log.write_bytes(b"".join(lines[:5]))
    child = start(stopped)
    errors = child.communicate(timeout=60)[1]
    assert child.returncode == 1
    assert errors.partition(": ")[2] == (
        "the log holds fewer steps than the checkpoint of step 30\n  next:     train the run anew with --fresh\n"
    )


def test_sigterm_saves_a_checkpoint_at_once_and_the_run_goes_on_from_there(straight_short, tmp_path):
    run = new_run(tmp_path / "run", SHORT.model_copy(update={"checkpoint_every": 1_000}))
    child = start(run)
    wait_until(lambda: count(run, "step") > 5, child)
    child.send_signal(signal.SIGTERM)
    child.wait(timeout=20)
    assert child.returncode == 143
    stopped_at = next(event["step"] for event in run.read_log() if event["event"] == "stopped")
    finish(run)
    resumed = next(event for event in run.read_log() if event["event"] == "resumed")
    assert (resumed["step"], resumed["redone"]) == (stopped_at, 0)
    assert weights(run) == weights(straight_short)


def test_how_often_one_evaluates_or_saves_changes_no_weight(straight_short, tmp_path):
    run = new_run(tmp_path / "run", SHORT.model_copy(update={"eval_every": 3, "checkpoint_every": 40}))
    finish(run)
    assert weights(run) == weights(straight_short)


def test_bf16_micro_batches_rope_and_shared_heads_resume_exactly_too(tmp_path):
    more = {"precision": "bf16", "accumulate": 2, "position": "rope", "kv_heads": 2, "norm": "rms", "mlp": "swiglu"}
    settings = SHORT.model_copy(update=more | {"width": 64, "steps": 30, "kills": 2})
    straight, killed = (
        new_run(tmp_path / "a", settings.model_copy(update={"kills": 0})),
        new_run(tmp_path / "b", settings),
    )
    finish(straight)
    for _ in range(2):
        assert start(killed).wait(timeout=60) == -signal.SIGKILL
    finish(killed)
    assert weights(killed) == weights(straight)
    assert trained_rows(killed) == trained_rows(straight)


def test_a_child_whose_parent_is_gone_saves_and_stops(tmp_path):
    run = new_run(tmp_path / "run", SHORT.model_copy(update={"steps": 4_000, "checkpoint_every": 4_000}))
    command = [sys.executable, "-m", "engine.training.loop", str(run.path), "--watch-parent"]
    child = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: count(run, "step") > 5, child)
    child.stdin.close()
    child.wait(timeout=20)
    assert child.returncode == 143
    assert len(checkpoints_of(run)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_stops_the_run_with_the_older_checkpoint_whole(tmp_path, straight_short):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(disk)], capture_output=True, check=False
    ).returncode:
        pytest.skip("this sandbox mounts nothing")
    try:
        run = new_run(disk / "run", SHORT)
        child = start(run)
        wait_until(lambda: run.checkpoints.exists() and checkpoints_of(run), child)
        child.kill()
        child.wait()
        (before,) = checkpoints_of(run)[-1:]
        filler = disk / "filler"
        filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - 3_000_000)))
        child = start(run)
        errors = child.communicate(timeout=60)[1]
        assert child.returncode == 1
        newest = checkpoints_of(run)[-1]
        assert newest.name >= before.name
        step = int(newest.name.split("-")[1]) + 10
        assert errors.partition(": ")[2] == (
            f"the checkpoint of step {step} could not be written; {newest.name} is whole, and the run goes on from it\n"
            "  got:      [Errno 28] No space left on device\n"
            "  next:     make room or allow writing there, then run the same command again\n"
        )
        filler.unlink()
        finish(run)
        assert weights(run) == weights(straight_short)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_checkpoints_sort_by_number_and_only_the_two_newest_are_kept(tmp_path):
    from engine.training import checkpoint

    for step in (9_000, 10_000, 200_000_000, 1_000_000_000):
        checkpoint.save(tmp_path, step, {"step": step})
    assert [int(path.name.split("-")[1]) for path in checkpoint.newest_first(tmp_path)] == [1_000_000_000, 200_000_000]
    assert checkpoint.load(tmp_path, warn=print) == {"step": 1_000_000_000}


def test_a_checkpoint_that_holds_code_does_not_run_it(tmp_path):
    from engine.training import checkpoint

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    checkpoint.save(tmp_path, 1, {"step": Evil()})
    with pytest.raises(UserError, match="this checkpoint asks to run code, so it is not one of ours"):
        checkpoint.load(tmp_path, warn=print)
    assert not (tmp_path / "pwned").exists()


def test_weights_of_a_compiled_run_have_the_names_of_plain_ones():
    import torch

    from engine.training.model import GPT

    model = GPT(SHORT, 256)
    torch.compile(model.loss)
    assert not [name for name in model.state_dict() if "_orig_mod" in name]


# The supervisor, from outside: build.py --run


def test_planned_kills_are_survived_and_all_arms_end_on_one_hash(trained):
    for seed in (1, 2):
        summaries = [
            json.loads((trained.recorded / f"{arm}-s{seed}" / "summary.json").read_text())
            for arm in ("rare", "often", "straight")
        ]
        assert len({one["weights_sha256"] for one in summaries}) == 1
        assert [one["kills"] for one in summaries] == [1, 1, 0]
        assert [one["attempts"] for one in summaries] == [2, 2, 1]
        assert summaries[0]["redone_steps"] >= summaries[1]["redone_steps"]


def test_changed_settings_are_named_and_nothing_is_touched(trained, capsys):
    trained.edit(trained.toml, "lr = 1e-3", "lr = 2e-3")
    before = {path: path.read_bytes() for path in sorted(trained.local.rglob("*")) if path.is_file()}
    assert trained.build("--lesson", "1.7", "--run", "--arm", "often") == 1
    assert capsys.readouterr().err == (
        "runs/local/1.7/cpu/often-s1: this run was begun with other settings or data\n"
        "  got:      lr: 0.001 -> 0.002\n"
        "  next:     set them back, or start over by adding --fresh\n"
    )
    assert {path: path.read_bytes() for path in before} == before


@pytest.fixture
def slow(content):
    """A lesson that trains long enough to be interrupted."""
    content.toml.write_text(
        LESSON.replace("steps = 24", "steps = 20000").replace("checkpoint_every = 2\n", "checkpoint_every = 5000\n")
    )
    return content


def wait_for_steps(content, arm: str, process) -> None:
    log = RunFolder(content.local / f"{arm}-s1")
    wait_until(lambda: count(log, "step") > 3, process)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_save_and_the_next_run_goes_on(slow, number, code):
    process = slow.start("--lesson", "1.7", "--run", "--arm", "often", start_new_session=True)
    wait_for_steps(slow, "often", process)
    os.killpg(process.pid, number)  # as a terminal does: to the whole foreground group
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert errors == "stopped; every run saved a checkpoint, and the same command goes on from there\n"
    assert len(checkpoints_of(RunFolder(slow.local / "often-s1"))) == 1
    process = slow.start("--lesson", "1.7", "--run", "--arm", "often", start_new_session=True)
    run = RunFolder(slow.local / "often-s1")
    wait_until(lambda: count(run, "resumed") == 1, process)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=30)
    assert next(event for event in run.read_log() if event["event"] == "resumed")["redone"] == 0


def test_a_second_run_of_the_lesson_says_who_is_at_work_and_changes_nothing(slow, capsys):
    process = slow.start("--lesson", "1.7", "--run", "--arm", "often")
    wait_for_steps(slow, "often", process)
    before = sorted(path for path in slow.runs.rglob("*"))
    assert slow.build("--lesson", "1.7", "--run", "--fresh") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "lesson 1.7: another process is at work on it"
    assert lines[1].startswith(f"  got:      pid {process.pid} since 20")
    assert lines[2] == "  next:     wait until it ends, or stop it with kill and its pid"
    assert sorted(path for path in slow.runs.rglob("*")) == before
    process.terminate()
    process.communicate(timeout=30)


def test_when_the_supervisor_is_killed_its_runs_stop_and_its_lock_is_taken_over(slow):
    process = slow.start("--lesson", "1.7", "--run", "--arm", "often")
    wait_for_steps(slow, "often", process)
    process.kill()
    process.wait()
    run = RunFolder(slow.local / "often-s1")
    end = time.monotonic() + 20
    while count(run, "stopped") < 1:
        assert time.monotonic() < end, "the orphan trained on"
    second = slow.start("--lesson", "1.7", "--run", "--arm", "often")
    wait_until(lambda: count(run, "resumed") == 1, second)
    second.terminate()
    out, _ = second.communicate(timeout=30)
    assert f"lesson 1.7: taking over the lock of a process that died (pid {process.pid} since " in out


def test_a_run_killed_from_outside_is_told_and_the_others_go_on(content):
    content.toml.write_text(LESSON.replace("steps = 24", "steps = 1500").replace("kills = 1", "kills = 0"))
    process = content.start("--lesson", "1.7", "--run")
    wait_for_steps(content, "often", process)
    pid = RunFolder(content.local / "often-s1").path.joinpath("lock").read_text().split()[1]
    os.kill(int(pid), signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    first, second = errors.splitlines()[:2]
    assert "often-s1: the process was killed from outside at step " in first
    assert first.endswith("(out of memory?)")
    assert second == "  next:     run the same command again: it goes on from the last checkpoint"
    assert RunFolder(content.local / "rare-s1").finished and RunFolder(content.local / "straight-s1").finished
