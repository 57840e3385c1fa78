"""Files that could be read in two ways, or hardly at all: told apart, or refused in one line."""

import json
import os
import struct
import threading

import numpy as np
import pytest

from scalerl import scaling
from scalerl.errors import InputError

C = np.arange(1.0, 13.0)
Y = np.round(0.4 + 0.01 * np.arange(12), 3)


def table(path, header, rows):
    path.write_text("\n".join([header, *(",".join(map(str, r)) for r in rows)]) + "\n")
    return path


def notes(curve):
    return " | ".join(curve.notes)


# --- runs told apart by numbers -------------------------------------------------------------------


@pytest.mark.parametrize("column", ["run", "run_id", "seed"])
def test_numbered_runs_are_runs_of_their_own(tmp_path, column):
    rows = [(i % 2, c, y) for i, (c, y) in enumerate(zip(C, Y, strict=True))]
    path = table(tmp_path / "a.csv", f"{column},gpu_hours,pass_rate", rows)
    zero, one = scaling.read_curves(path)
    assert (zero.name, one.name) == (f"{column} 0", f"{column} 1")
    assert zero.compute.tolist() == C[::2].tolist()
    assert scaling.read_curve(path, run=f"{column} 1").pass_rate.tolist() == Y[1::2].tolist()


def test_seeds_of_named_runs_are_told_apart(tmp_path):
    rows = [("ab"[i % 2], i // 6, c, y) for i, (c, y) in enumerate(zip(C, Y, strict=True))]
    path = table(tmp_path / "a.csv", "run,seed,gpu_hours,pass_rate", rows)
    names = [c.name for c in scaling.read_curves(path)]
    assert names == ["a/seed 0", "b/seed 0", "a/seed 1", "b/seed 1"]


def test_a_constant_seed_and_a_row_counter_are_no_runs(tmp_path):
    rows = [(7, i, c, y) for i, (c, y) in enumerate(zip(C, Y, strict=True))]
    path = table(tmp_path / "a.csv", "seed,run,gpu_hours,pass_rate", rows)
    assert len(scaling.read_curve(path)) == 12


def test_rows_without_a_run_are_named(tmp_path):
    rows = [
        ("" if i == 5 else "ab"[i % 2], c, y) for i, (c, y) in enumerate(zip(C, Y, strict=True))
    ]
    path = table(tmp_path / "a.csv", "run,gpu_hours,pass_rate", rows)
    assert "1 rows name no run (run) and were left out, first 7" in notes(
        scaling.read_curve(path, run="a")
    )


def test_a_run_that_is_asked_for_is_read_although_another_cannot_be(tmp_path):
    header = '"Step","r1 - gpu_hours","r1 - val/acc","r2 - val/acc"'
    path = table(
        tmp_path / "w.csv",
        header,
        [(i, c, y, y) for i, (c, y) in enumerate(zip(C, Y, strict=True), 1)],
    )
    with pytest.raises(InputError, match="run 'r2' has no column"):
        scaling.read_curves(path)
    assert scaling.read_curve(path, run="r1").compute.tolist() == C.tolist()


# --- scales ---------------------------------------------------------------------------------------


def test_per_cent_of_a_hard_task_are_read_as_the_user_said(tmp_path):
    rates = np.linspace(0.2, 0.9, 12)
    path = table(tmp_path / "a.csv", "gpu_hours,pass_rate", zip(C, rates, strict=True))
    curve = scaling.read_curve(path, scale="percent")
    np.testing.assert_allclose(curve.pass_rate, rates / 100)
    assert "none is above 1: 'pass_rate' is at most 0.9 %" in notes(curve)


@pytest.mark.parametrize("column", ["pass_fraction", "val/Share passed"])
def test_fractions_by_name_are_not_taken_for_per_cent(tmp_path, column):
    path = table(tmp_path / "a.csv", f"gpu_hours,{column}", zip(C, Y, strict=True))
    with pytest.raises(InputError, match=r"a\.csv:13: .* is at most 0.51.*fractions"):
        scaling.read_curve(path, scale="percent")
    path = table(tmp_path / "b.csv", f"gpu_hours,{column}", zip(C, 100 * Y, strict=True))
    np.testing.assert_allclose(scaling.read_curve(path, scale="percent").pass_rate, Y)


def test_rounding_just_above_1_is_1(tmp_path):
    rates = [*Y[:-1], 1 + 4e-10]
    path = table(tmp_path / "a.csv", "gpu_hours,pass_rate", zip(C, rates, strict=True))
    assert scaling.read_curve(path).pass_rate[-1] == 1.0


def test_truncation_rates_outside_0_to_1_are_left_out_with_a_note(tmp_path):
    rows = [(c, y, 5.0 if i == 3 else 0.02) for i, (c, y) in enumerate(zip(C, Y, strict=True))]
    path = table(tmp_path / "a.csv", "gpu_hours,pass_rate,truncation_rate", rows)
    curve = scaling.read_curve(path)
    assert curve.truncation_rate is None
    assert curve.pass_rate.tolist() == Y.tolist()
    said = "a.csv:5: 'truncation_rate' is 5, outside [0, 1] (1 such rows: line 5); the column was"
    assert said in notes(curve)


@pytest.mark.parametrize("unit", [1.0, 1e3, 1e9])
def test_unix_time_is_no_compute(tmp_path, unit):
    clock = [f"{(1.7e9 + 60 * c) * unit:.0f}" for c in C]
    path = table(tmp_path / "a.csv", "_timestamp,pass_rate", zip(clock, Y, strict=True))
    with pytest.raises(InputError, match=r"a\.csv:2: '_timestamp' is .*Unix time"):
        scaling.read_curve(path, compute="_timestamp")
    path = table(tmp_path / "b.csv", "tokens,pass_rate", zip(C * 1e9, Y, strict=True))
    assert scaling.read_curve(path).compute[0] == 1e9


def test_a_count_in_the_range_of_unix_time_is_compute_where_the_user_says_so(tmp_path):
    tokens = np.linspace(2.0e9, 2.15e9, 12)
    path = table(tmp_path / "a.csv", "tokens,pass_rate", zip(tokens, Y, strict=True))
    assert scaling.read_curve(path, compute="tokens").compute.tolist() == tokens.tolist()
    with pytest.raises(InputError, match=r"'tokens' is 2000000000 .*if it is, name it with"):
        scaling.read_curve(path)
    header = "Step,r1 - tokens,r1 - val/acc"
    rows = [(i, *row) for i, row in enumerate(zip(tokens, Y, strict=True), 1)]
    path = table(tmp_path / "w.csv", header, rows)
    assert scaling.read_curve(path, compute="tokens").compute.tolist() == tokens.tolist()


@pytest.mark.parametrize("column", ["wall_time", "Timestamp", "val/unix", "time (s)"])
def test_a_column_named_for_a_time_of_day_is_no_compute_although_it_was_named(tmp_path, column):
    path = table(tmp_path / "a.csv", f"{column},pass_rate", zip(1.7e9 + 60 * C, Y, strict=True))
    with pytest.raises(InputError, match="Unix time, not compute; choose another column"):
        scaling.read_curve(path, compute=column)


def test_notes_name_their_rows(tmp_path):
    rows = [(c, 100 * y) for c, y in zip([1, 1, *C[2:]], Y, strict=True)]
    curve = scaling.read_curve(
        table(tmp_path / "a.csv", "gpu_hours,pass_rate", rows), scale="percent"
    )
    assert "2 evaluations at the same compute were averaged, 1 times: line 2, 3" in notes(curve)
    assert "12 pass rates converted from per cent, from line 2" in notes(curve)


def test_case_h02_a_sampled_history_is_noted(tmp_path):
    """Steps 500 apart with every other gap off: a chart's sample, not the whole history."""
    steps = np.cumsum([500, *([500, 512, 488, 530, 471] * 4)][:12])
    path = table(tmp_path / "a.csv", "step,gpu_hours,pass_rate", zip(steps, C, Y, strict=True))
    assert "steps look sampled: 8 of 11 are unevenly spaced, first at line 4" in notes(
        scaling.read_curve(path)
    )


# --- files that break readers ---------------------------------------------------------------------


def test_thousands_in_the_compute_are_named(tmp_path):
    rows = [(f'"{1000 * c:,.0f}"', y) for c, y in zip(C, Y, strict=True)]
    path = table(tmp_path / "a.csv", "gpu_hours,pass_rate", rows)
    with pytest.raises(InputError, match=r"a\.csv:2: column 'gpu_hours' has '1,000'.*thousands"):
        scaling.read_curve(path)


def test_huge_integers_and_deep_json_are_said_in_one_line(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [f'{{"gpu_hours": {c}, "pass_rate": {y}}}' for c, y in zip(C, Y, strict=True)]
    huge = f'{{"gpu_hours": {"9" * 5000}, "pass_rate": 0.4}}'
    path.write_text("\n".join([*rows, huge]) + "\n")
    curve = scaling.read_curve(path)
    assert len(curve) == 12
    assert "1 rows have no usable 'gpu_hours' and were dropped: line 13" in notes(curve)
    path.write_text("\n".join([*rows, '{"a":' * 50_000]) + "\n")
    with pytest.raises(InputError, match=r"a\.jsonl:13: the JSON is nested too deeply"):
        scaling.read_curve(path)
    whole = tmp_path / "a.json"
    whole.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"a\.json: the JSON is nested too deeply"):
        scaling.read_curve(whole)


@pytest.mark.parametrize("text", ["csv", "jsonl"])
def test_a_pipe_is_read_once(tmp_path, text):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    rows = list(zip(C, Y, strict=True))
    if text == "csv":
        written = "gpu_hours,pass_rate\n" + "".join(f"{c},{y}\n" for c, y in rows)
    else:
        written = "".join(json.dumps({"gpu_hours": c, "pass_rate": y}) + "\n" for c, y in rows)
    writer = threading.Thread(target=pipe.write_text, args=(written,))
    writer.start()
    curve = scaling.read_curve(pipe)
    writer.join()
    assert (curve.name, curve.compute.tolist()) == ("piped", C.tolist())


def framed(message):
    return struct.pack("<Q", len(message)) + bytes(4) + message + bytes(4)


def event(step, tag, value):
    """One TensorBoard record of a scalar, without checksums."""
    name = tag.encode()
    scalar = b"\x0a" + bytes([len(name)]) + name + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(scalar)]) + scalar
    time = b"\x09" + struct.pack("<d", 1000.0 + step)
    return framed(time + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary)


def test_a_broken_tensorboard_number_is_said_in_one_line(tmp_path):
    (tmp_path / "events.out.tfevents.1").write_bytes(framed(b"\x0a\x03abc"))
    with pytest.raises(InputError, match=r"tfevents\.1: not a TensorBoard event file"):
        scaling.read_curve(tmp_path)


def test_a_trainers_file_does_not_replace_an_evaluators(tmp_path):
    evaluator = b"".join(event(i, "val/acc", y) for i, y in enumerate(Y, 1))
    trainer = b"".join(event(i, "train/loss", 2.0) for i in range(2, 13))
    (tmp_path / "events.out.tfevents.1.eval").write_bytes(evaluator)
    (tmp_path / "events.out.tfevents.2.train").write_bytes(trainer)
    curve = scaling.read_curve(tmp_path)
    np.testing.assert_allclose(curve.pass_rate, Y, atol=1e-6)
    # a resumed evaluator replaces its own tag from its first step on, and nothing else
    again = b"".join(event(i, "val/acc", 0.6) for i in range(10, 12))
    (tmp_path / "events.out.tfevents.3.eval").write_bytes(
        again.replace(struct.pack("<d", 1010.0), struct.pack("<d", 3000.0), 1)
    )
    curve = scaling.read_curve(tmp_path)
    assert curve.step.tolist() == [*range(1, 12)]
    np.testing.assert_allclose(curve.pass_rate[-2:], 0.6, atol=1e-6)
    assert "3 steps from 10 on are taken from the later file" in notes(curve)
