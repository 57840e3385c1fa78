"""A run's logs: whole lines, each step once after resumes, nothing lost to a torn one."""

import json

import pytest

from scalerl.config import load_config
from scalerl.errors import InputError, RunError
from scalerl.pipeline.records import RunDirectory, current_rows, read_rows


def write(directory: RunDirectory, *steps: int) -> None:
    for step in steps:
        directory.append("steps", {"step": step, "value": step * 10 + directory.attempt})


def test_a_new_run_holds_its_config_and_is_not_begun_twice(tmp_path):
    config = load_config()
    RunDirectory.create(tmp_path / "run", config)
    assert load_config([tmp_path / "run" / "config.toml"]) == config
    with pytest.raises(InputError, match="already holds a run"):
        RunDirectory.create(tmp_path / "run", config)


def test_reopening_counts_attempts_and_supersedes_the_abandoned_tail(tmp_path):
    first = RunDirectory.create(tmp_path, load_config())
    write(first, 1, 2, 3, 4)
    second = RunDirectory.reopen(tmp_path)
    assert second.attempt == 1
    write(second, 3, 4, 5)
    third = RunDirectory.reopen(tmp_path)
    write(third, 5)
    rows = current_rows(tmp_path / "steps.jsonl")
    assert [(r["step"], r["attempt"]) for r in rows] == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)]


def test_a_torn_line_is_left_out_and_the_next_attempt_begins_a_line_of_its_own(tmp_path):
    first = RunDirectory.create(tmp_path, load_config())
    write(first, 1, 2)
    file = tmp_path / "steps.jsonl"
    file.write_bytes(file.read_bytes() + b'{"attempt": 0, "step": 3, "va')
    assert [r["step"] for r in read_rows(file)] == [1, 2]
    second = RunDirectory.reopen(tmp_path)
    write(second, 3)
    assert [r["step"] for r in current_rows(file)] == [1, 2, 3]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    file = tmp_path / "steps.jsonl"
    file.write_text('{"attempt": 0, "step": 1}\nnonsense\n{"attempt": 0, "step": 2}\n')
    with pytest.raises(InputError, match=r"steps\.jsonl:2"):
        read_rows(file)


def test_values_that_json_does_not_know_become_null(tmp_path):
    directory = RunDirectory(tmp_path, 0)
    directory.append("steps", {"step": 1, "loss": float("nan"), "q": {"max": float("inf")}})
    row = json.loads((tmp_path / "steps.jsonl").read_text())
    assert row == {"attempt": 0, "step": 1, "loss": None, "q": {"max": None}}


def test_a_log_that_cannot_be_written_names_the_file(tmp_path):
    directory = RunDirectory(tmp_path / "gone", 0)
    with pytest.raises(RunError, match=r"steps\.jsonl"):
        directory.append("steps", {"step": 1})


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        RunDirectory.create(tmp_path / "file" / "run", load_config())


def test_the_abandoned_tail_goes_even_where_the_next_attempt_logs_less_often(tmp_path):
    """Evaluated at 5, 10, 15; resumed from 10; evaluated at 20 next: 15 was of other weights."""
    write(RunDirectory.create(tmp_path, load_config()), 0, 5, 10, 15)
    second = RunDirectory.reopen(tmp_path)
    second.from_step = 10
    write(second, 20)
    rows = current_rows(tmp_path / "steps.jsonl")
    assert [(r["step"], r["attempt"]) for r in rows] == [(0, 0), (5, 0), (10, 0), (20, 1)]


def test_a_disk_that_fills_up_twice_leaves_a_log_that_is_read(tmp_path):
    file = tmp_path / "steps.jsonl"
    write(RunDirectory.create(tmp_path, load_config()), 1, 2)
    for attempt in (1, 2):
        directory = RunDirectory.reopen(tmp_path)
        assert directory.attempt == 1
        directory._append(file, {"attempt": attempt})
        file.write_bytes(file.read_bytes().removesuffix(b"}\n"))  # cut short
    write(RunDirectory.reopen(tmp_path), 3)
    assert [r["step"] for r in current_rows(file)] == [1, 2, 3]


def test_a_config_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    config = load_config()
    directory = RunDirectory.create(tmp_path, config)

    def full(*words, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match=r"config\.toml: cannot be written: .*No space left"):
        directory.write_config(load_config(overrides=["--steps", "7"]))
    assert load_config([tmp_path / "config.toml"]) == config
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["config.toml"]


def test_a_run_that_could_not_begin_leaves_its_name_free_and_others_files_alone(tmp_path):
    RunDirectory.create(tmp_path / "run", load_config()).withdraw()
    assert not (tmp_path / "run").exists()
    (tmp_path / "notes.txt").write_text("mine")
    RunDirectory.create(tmp_path, load_config()).withdraw()
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
