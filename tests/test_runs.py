"""The run folder: readable by any tool, honest about damage."""

import json
import shutil

import duckdb
import pandas
import pyarrow.parquet as pq
import pytest

from engine.errors import UserError
from engine.runs import MAX_ROWS, Log, RunFolder, file_hash, finished_runs, lock, read_run, thinned


def test_pandas_and_duckdb_read_metrics_without_our_code(trained):
    path = trained.recorded / "often-s1" / "metrics.parquet"
    frame = pandas.read_parquet(path)
    assert list(frame["step"]) == list(range(25))
    assert list(frame[frame["val_loss"].notna()]["step"]) == [0, 8, 16, 24]
    rows = duckdb.sql(f"select count(*), max(tokens), max(bytes) from '{path}'").fetchall()
    assert rows == [(25, 24 * 2 * 32, 24 * 2 * 32)]


def test_every_column_has_a_type_and_a_unit(trained):
    schema = pq.read_schema(trained.recorded / "often-s1" / "metrics.parquet")
    units = {field.name: (str(field.type), field.metadata[b"unit"].decode()) for field in schema}
    assert units == {
        "step": ("int32", "optimizer updates"), "tokens": ("int64", "tokens"), "bytes": ("int64", "bytes"), "wall_s": ("float", "seconds"),
        "train_loss": ("float", "nats per token"), "val_loss": ("float", "nats per token"), "val_bpb": ("float", "bits per byte"), "lr": ("float", "1"),
        "grad_norm": ("float", "1"), "tokens_per_s": ("float", "tokens per second"), "peak_mem_bytes": ("int64", "bytes"), "attempt": ("int16", "1"),
    }  # fmt: skip


def test_provenance_says_who_computed(trained):
    config = json.loads((trained.recorded / "often-s1" / "config.json").read_text())
    assert {"settings", "settings_sha256", "data_sha256", "numerics_version", "provenance"} <= config.keys()
    assert config["provenance"].keys() == {
        "git_commit",
        "git_dirty",
        "torch",
        "python",
        "processor",
        "gpu",
        "system",
        "started",
        "threads",
    }


def test_the_time_axis_goes_on_over_attempts(trained):
    frame = pandas.read_parquet(trained.recorded / "often-s1" / "metrics.parquet")
    assert frame["wall_s"].is_monotonic_increasing
    assert sorted(frame["attempt"].unique()) == [1, 2]


def test_a_line_that_a_kill_cut_short_is_dropped_and_the_next_one_is_whole(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"event": "step", "step": 1}\n{"event": "st')
    assert RunFolder(tmp_path).read_log() == [{"event": "step", "step": 1}]
    Log(path).write("step", step=2)
    assert RunFolder(tmp_path).read_log() == [{"event": "step", "step": 1}, {"event": "step", "step": 2}]


def test_long_runs_keep_every_evaluation_and_at_most_1000_rows():
    rows = [{"step": step, "val_loss": 1.0 if step % 250 == 0 else None} for step in range(10_001)]
    kept = thinned(rows)
    assert len(kept) <= MAX_ROWS
    assert [row["step"] for row in kept if row["val_loss"]] == list(range(0, 10_001, 250))
    assert kept[-1]["step"] == 10_000


@pytest.mark.parametrize("name", ["config.json", "events.parquet", "metrics.parquet"])
def test_a_changed_file_of_a_run_is_found(trained, name):
    path = trained.recorded / "often-s1" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=f"{name}: not the file that summary.json names"):
        finished_runs(trained.recorded)


def test_metrics_renamed_into_place_last_mean_finished(trained):
    folder = trained.recorded / "often-s1"
    assert RunFolder(folder).finished
    (folder / "metrics.parquet").unlink()
    assert not RunFolder(folder).finished
    assert "often-s1" not in [run.name for run in finished_runs(trained.recorded)]


def test_flipped_bits_of_the_data_are_found_without_any_hash_of_ours(trained):
    """Page checksums, for those who read the file alone. They do not cover the footer; summary.json's hash covers all."""
    path = trained.recorded / "often-s1" / "metrics.parquet"
    good = pq.read_table(path).to_pydict()
    data, silent = path.read_bytes(), 0
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    for at in range(4, len(data) - footer, 31):
        path.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
        try:
            silent += pq.read_table(path, page_checksum_verification=True).to_pydict() not in (good,)
        except (OSError, ValueError, UnicodeDecodeError):
            pass
    assert silent == 0


def test_a_run_without_its_summary_is_told(trained, monkeypatch):
    monkeypatch.chdir(trained.root)
    (trained.recorded / "often-s1" / "summary.json").unlink()
    with pytest.raises(UserError) as error:
        read_run(trained.recorded.relative_to(trained.root) / "often-s1")
    assert str(error.value) == (
        "runs/1.7/cpu/often-s1/summary.json: cannot be read\n  got:      No such file or directory\n"
        "  next:     restore the run from git, or train it anew with --fresh"
    )


def test_recording_copies_neither_log_nor_checkpoints(trained):
    assert sorted(path.name for path in (trained.recorded / "often-s1").iterdir()) == [
        "config.json",
        "events.parquet",
        "metrics.parquet",
        "summary.json",
    ]


def test_a_lock_is_given_back_after_an_error_and_left_behind_only_by_a_kill(tmp_path):
    with pytest.raises(UserError), lock(tmp_path / "lock", "x"):
        raise UserError("stopped")
    with lock(tmp_path / "lock", "x") as left_by:
        assert left_by == ""


def test_a_seed_that_the_lesson_does_not_name_stays_local(trained):
    shutil.copytree(trained.local / "often-s1", trained.local / "often-s7")
    path = trained.local / "often-s7" / "config.json"
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 7'))
    summary = trained.local / "often-s7" / "summary.json"
    text = json.loads(summary.read_text())
    text["files_sha256"]["config.json"] = file_hash(path)
    summary.write_text(json.dumps(text))
    assert trained.build("--lesson", "1.7", "--record") == 0
    assert not (trained.recorded / "often-s7").exists()
    assert not [path for path in trained.runs.rglob("recording")]


def test_nothing_to_record_is_told(content, capsys):
    shutil.rmtree(content.runs, ignore_errors=True)
    assert content.build("--lesson", "1.7", "--record") == 1
    assert capsys.readouterr().err == (
        "runs/local/1.7/cpu: there is no finished run to record\n  next:     python build.py --lesson 1.7 --run\n"
    )
