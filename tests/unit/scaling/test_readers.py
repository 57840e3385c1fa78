"""Readers name what they find by row: converted, dropped with a note, or refused."""

import json
import sqlite3

import numpy as np
import pytest

from scalerl import scaling
from scalerl.errors import InputError
from scalerl.scaling.sigmoid import sigmoid

from .simulate import PAPER

C = np.linspace(1500, 12000, 12)
Y = np.round(sigmoid(C, **PAPER), 5)


def write(path, text):
    path.write_text(text)
    return path


def csv_of(path, header, rows):
    return write(path, "\n".join([header, *(",".join(map(str, r)) for r in rows)]) + "\n")


def jsonl_of(path, records):
    return write(path, "".join(json.dumps(r) + "\n" for r in records))


def notes(curve):
    return " | ".join(curve.notes)


# --- plain files ------------------------------------------------------------------------------


def test_run_directory_defaults(tmp_path):
    rows = [{"step": 0, "device_hours": 0.0, "pass_rate": 0.4, "flops": 0.0}]
    rows += [
        {"step": 100 * (i + 1), "device_hours": c, "pass_rate": y, "flops": c * 1e18}
        for i, (c, y) in enumerate(zip(C, Y, strict=True))
    ]
    jsonl_of(tmp_path / "curve.jsonl", rows)
    curve = scaling.read_curve(tmp_path)
    assert curve.name == tmp_path.name
    assert curve.unit == "device_hours"
    assert curve.r0_observed == 0.4
    np.testing.assert_allclose(curve.compute, C)
    np.testing.assert_allclose(curve.step, 100 * np.arange(1, 13))
    assert scaling.read_curve(tmp_path, compute="flops").unit == "flops"


def test_later_attempt_supersedes(tmp_path):
    rows = [
        {"attempt": 1, "step": 0, "device_hours": 0.0, "pass_rate": 0.40},
        {"attempt": 1, "step": 10, "device_hours": 1.0, "pass_rate": 0.45},
        {"attempt": 1, "step": 20, "device_hours": 2.0, "pass_rate": 0.99},
        {"attempt": 1, "step": 30, "device_hours": 3.0, "pass_rate": 0.99},
        {"attempt": 2, "step": 20, "device_hours": 2.5, "pass_rate": 0.50},
    ]
    jsonl_of(tmp_path / "curve.jsonl", rows)
    curve = scaling.read_curve(tmp_path)
    assert curve.step.tolist() == [10, 20]
    assert curve.pass_rate.tolist() == [0.45, 0.50]
    assert "superseded" in notes(curve)
    assert "3, 4" in notes(curve)


def test_an_attempt_that_went_on_earlier_than_its_first_row_supersedes_from_there(tmp_path):
    """Resumed from step 10 and evaluated less often: step 15 was of weights that are no more."""
    rows = [
        {"attempt": 0, "step": 5 * i, "device_hours": float(i), "pass_rate": 0.4 + i / 50}
        for i in range(4)
    ]
    later = {"attempt": 1, "from_step": 10, "step": 20, "device_hours": 4.0, "pass_rate": 0.5}
    jsonl_of(tmp_path / "curve.jsonl", [*rows, later])
    assert scaling.read_curve(tmp_path).step.tolist() == [5, 10, 20]


def test_torn_last_line_is_noted_and_other_bad_lines_are_named(tmp_path):
    path = tmp_path / "curve.jsonl"
    good = "".join(
        json.dumps({"step": i, "device_hours": float(i), "pass_rate": 0.4 + i / 100}) + "\n"
        for i in range(6)
    )
    write(path, good + '{"step": 6, "dev')
    curve = scaling.read_curve(tmp_path)
    assert len(curve) == 5
    assert "line 7 is cut off" in notes(curve)
    write(path, good.replace('{"step": 3', '{"step" 3'))
    with pytest.raises(InputError, match=r"curve\.jsonl:4: not JSON"):
        scaling.read_curve(tmp_path)
    write(path, good + "[1, 2]\n")
    with pytest.raises(InputError, match=r"curve\.jsonl:7: expected a JSON object"):
        scaling.read_curve(tmp_path)


def test_tasks_are_series_of_their_own(tmp_path):
    rows = [
        {"step": i, "device_hours": float(i), "pass_rate": r, **extra}
        for i in range(5)
        for r, extra in ((0.5, {}), (0.4, {"task": "math"}), (0.6, {"task": "code"}))
    ]
    jsonl_of(tmp_path / "curve.jsonl", rows)
    curves = scaling.read_curves(tmp_path)
    assert [c.name.rsplit("/", 1)[-1] for c in curves] == [tmp_path.name, "task math", "task code"]
    assert scaling.read_curve(tmp_path).pass_rate.tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("header", "separator"),
    [("gpu_hours,pass_rate", ","), ("GPU hours;val/acc", ";"), ("tokens\teval_reward", "\t")],
)
def test_csv_columns_are_found_by_name(tmp_path, header, separator):
    path = tmp_path / "log.csv"
    write(path, header + "\n" + "".join(f"{c}{separator}{y}\n" for c, y in zip(C, Y, strict=True)))
    np.testing.assert_allclose(scaling.read_curve(path).pass_rate, Y)


def test_any_column_names_by_option_or_alone(tmp_path):
    path = csv_of(tmp_path / "a.csv", "x,y", zip(C, Y, strict=True))
    curve = scaling.read_curve(path)
    assert (curve.unit, curve.compute[0]) == ("x", 1500)
    path = csv_of(tmp_path / "b.csv", "blah,foo,bar", zip(Y, C, Y / 2, strict=True))
    with pytest.raises(InputError, match=r"--reward: 'blah', 'foo', 'bar'"):
        scaling.read_curve(path)
    curve = scaling.read_curve(path, compute="foo", reward="blah")
    np.testing.assert_allclose(curve.pass_rate, Y)
    with pytest.raises(InputError, match=r"there is no column 'fo' \(--compute\)"):
        scaling.read_curve(path, compute="fo", reward="blah")


def test_ambiguous_pass_rate_lists_candidates(tmp_path):
    path = csv_of(tmp_path / "a.csv", "step,acc_math,acc_code", [(i, 0.1, 0.2) for i in range(9)])
    with pytest.raises(InputError, match="'acc_math', 'acc_code'"):
        scaling.read_curve(path)


def test_held_out_metric_is_preferred_to_training_reward(tmp_path):
    path = csv_of(
        tmp_path / "a.csv",
        "flops,train/reward,val/acc",
        [(c, 0.9, y) for c, y in zip(C, Y, strict=True)],
    )
    np.testing.assert_allclose(scaling.read_curve(path).pass_rate, Y)


def test_headerless_file_and_comments(tmp_path):
    path = write(tmp_path / "a.csv", "# hours, rate\n1,0.4\n2,0.5\n3,0.6\n")
    curve = scaling.read_curve(path)
    assert curve.compute.tolist() == [1, 2, 3]
    assert "no header" in notes(curve)


# --- rows that cannot be fitted ---------------------------------------------------------------


def test_unsorted_and_duplicate_rows(tmp_path):
    rows = [(3, 0.5), (1, 0.3), (2, 0.4), (5, 0.6), (2, 0.42), (4, 0.55)]
    curve = scaling.read_curve(csv_of(tmp_path / "a.csv", "gpu_hours,pass_rate", rows))
    assert curve.compute.tolist() == [1, 2, 3, 4, 5]
    assert curve.pass_rate[1] == pytest.approx(0.41)
    assert curve.weight.tolist() == [1, 2, 1, 1, 1]
    assert "sorted" in notes(curve)
    assert "averaged" in notes(curve)


def test_duplicates_are_weighted_by_their_samples(tmp_path):
    rows = [(1, 0.3, 100), (2, 0.4, 100), (2, 0.7, 300), (3, 0.8, 100)]
    path = csv_of(tmp_path / "a.csv", "gpu_hours,pass_rate,n_samples", rows)
    curve = scaling.read_curve(path)
    assert curve.pass_rate[1] == pytest.approx((0.4 * 100 + 0.7 * 300) / 400)


def test_repeated_header_is_skipped(tmp_path):
    path = write(tmp_path / "a.csv", "gpu_hours,pass_rate\n1,.3\n2,.4\ngpu_hours,pass_rate\n3,.5\n")
    curve = scaling.read_curve(path)
    assert curve.compute.tolist() == [1, 2, 3]
    assert "line 4 repeats the header" in notes(curve)


def test_restarted_clock_is_refused_then_added_up(tmp_path):
    rows = [
        (10, 1, 0.40),
        (20, 2, 0.45),
        (30, 3, 0.50),
        (40, 1, 0.52),
        (50, 2, 0.54),
        (60, 3, 0.55),
    ]
    path = csv_of(tmp_path / "a.csv", "step,gpu_hours,pass_rate", rows)
    with pytest.raises(InputError, match=r"a\.csv:5: 'gpu_hours' falls from 3 \(line 4\) to 1"):
        scaling.read_curve(path)
    curve = scaling.read_curve(path, restarts="add")
    assert curve.compute.tolist() == [1, 2, 3, 4, 5, 6]
    assert "restarts at line 5" in notes(curve)


def test_restarted_clock_without_steps(tmp_path):
    rows = [
        (c, y)
        for c, y in zip([1, 2, 3, 4, 1, 2, 3, 4], [0.4 + 0.02 * i for i in range(8)], strict=True)
    ]
    path = csv_of(tmp_path / "a.csv", "gpu_hours,pass_rate", rows)
    with pytest.raises(InputError, match="restart"):
        scaling.read_curve(path)
    assert scaling.read_curve(path, restarts="add").compute.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(scaling.read_curve(path, restarts="sort")) == 4


@pytest.mark.parametrize(
    ("values", "option", "scale", "expected"),
    [
        ([40, 50, 61], "--reward-scale percent", "percent", [0.4, 0.5, 0.61]),
        ([-0.2, 0.0, 0.22], "--reward-scale plus-minus-one", "plus-minus-one", [0.4, 0.5, 0.61]),
    ],
)
def test_other_scales_are_refused_then_converted(tmp_path, values, option, scale, expected):
    path = csv_of(tmp_path / "a.csv", "gpu_hours,pass_rate", zip([1, 2, 3], values, strict=True))
    with pytest.raises(InputError, match=rf"a\.csv:\d.*{option}"):
        scaling.read_curve(path)
    curve = scaling.read_curve(path, scale=scale)
    np.testing.assert_allclose(curve.pass_rate, expected)
    assert "converted" in notes(curve)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("x,.5", r"a\.csv:4: column 'gpu_hours' has 'x'"),
        ("3,45%", r"a\.csv:4: column 'pass_rate' has '45%'"),
        ("-3,.5", r"a\.csv:4: compute -3 is below 0"),
        ("3,.5,9", r"a\.csv:4: 3 cells where the header has 2"),
        ("3,1.5", r"a\.csv:4: 'pass_rate' is 1.5, outside \[0, 1\]"),
    ],
)
def test_bad_cells_are_named(tmp_path, row, message):
    path = write(tmp_path / "a.csv", f"gpu_hours,pass_rate\n1,.3\n2,.4\n{row}\n")
    with pytest.raises(InputError, match=message):
        scaling.read_curve(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("gpu_hours,pass_rate\n", "no rows"),
        ("gpu_hours,pass_rate\n1,\n2,NaN\n", "column 'pass_rate' holds no numbers"),
        ("gpu_hours,pass_rate\n0,.4\n", "only usable points are at compute 0"),
        ("a,a\n1,2\n", "occurs 2 times"),
    ],
)
def test_files_without_a_curve(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        scaling.read_curve(write(tmp_path / "a.csv", text))


def test_missing_binary_and_empty_paths(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        scaling.read_curve(tmp_path / "nothing")
    with pytest.raises(InputError, match="not a run directory"):
        scaling.read_curve(tmp_path)
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="not a UTF-8"):
        scaling.read_curve(tmp_path / "a.csv")


# --- W&B ----------------------------------------------------------------------------------------


def test_case_h01_wandb_export(tmp_path):
    """__MIN and __MAX ignored, runs separated, a run name with a comma kept whole."""
    header = '"Step","r1 - val/acc","r1 - val/acc__MIN","r1 - val/acc__MAX","r, 2 - val/acc"'
    rows = [
        f"{i},{0.3 + i / 100},{0.2},{0.9}," if i % 2 else f"{i},,,,{0.1 + i / 100}"
        for i in range(1, 21)
    ]
    path = write(tmp_path / "wandb.csv", "\n".join([header, *rows]) + "\n")
    one, two = scaling.read_curves(path)
    assert (one.name, two.name) == ("r1", "r, 2")
    np.testing.assert_allclose(one.pass_rate, 0.3 + np.arange(1, 21, 2) / 100)
    np.testing.assert_allclose(two.pass_rate, 0.1 + np.arange(2, 21, 2) / 100)
    assert "averages several" in notes(one)
    with pytest.raises(InputError, match=r"--run: 'r1', 'r, 2'"):
        scaling.read_curve(path)
    assert scaling.read_curve(path, run="r1").name == "r1"


def test_wandb_several_metrics_need_a_choice(tmp_path):
    header = '"Step","r1 - val/acc_math","r1 - val/acc_code"'
    path = write(tmp_path / "w.csv", header + "\n1,.1,.2\n2,.2,.3\n")
    with pytest.raises(InputError, match=r"val/acc_math.*val/acc_code"):
        scaling.read_curves(path)
    (curve,) = scaling.read_curves(path, reward="val/acc_code")
    assert curve.pass_rate.tolist() == [0.2, 0.3]


def test_wandb_compute_joined_from_another_metric(tmp_path):
    header = '"Step","r1 - gpu_hours","r1 - val/acc"'
    path = write(tmp_path / "w.csv", header + "\n1,10,\n2,20,.4\n3,30,\n4,,.5\n")
    (curve,) = scaling.read_curves(path)
    assert curve.compute.tolist() == [20, 30]
    assert curve.unit == "gpu_hours"
    assert "last known" in notes(curve)


def test_case_h02_metrics_on_different_rows(tmp_path):
    """140 rows, an evaluation every tenth; two empty, a NaN and an Infinity among them."""
    rows = []
    for i in range(140):
        acc = "" if i % 10 else f"{0.4 + i / 1000}"
        acc = {50: "NaN", 60: "Infinity", 70: "", 80: ""}.get(i, acc)
        rows.append((i, i * 0.5, acc))
    curve = scaling.read_curve(csv_of(tmp_path / "a.csv", "step,gpu_hours,val_acc", rows))
    assert len(curve) == 14 - 4 - 1  # step 0 is the observation of R0
    assert curve.r0_observed == 0.4
    assert "128 rows have no 'val_acc'" in notes(curve)
    assert "2 rows have a NaN or infinite pass rate" in notes(curve)
    assert "line 52, 62" in notes(curve)


# --- TensorBoard, SQLite ------------------------------------------------------------------------


def test_tensorboard_later_file_wins(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    first = SummaryWriter(str(tmp_path), filename_suffix=".a")
    for step in range(0, 60, 10):
        first.add_scalar("val/pass_rate", 0.4 + step / 1000, step, walltime=1000.0 + step)
        first.add_scalar("compute/gpu_hours", step / 10, step, walltime=1000.0 + step)
    first.close()
    second = SummaryWriter(str(tmp_path), filename_suffix=".b")
    for step in range(30, 90, 10):
        second.add_scalar("val/pass_rate", 0.5 + step / 1000, step, walltime=2000.0 + step)
        second.add_scalar("compute/gpu_hours", step / 10, step, walltime=2000.0 + step)
    second.close()
    curve = scaling.read_curve(tmp_path)
    assert curve.unit == "compute/gpu_hours"
    np.testing.assert_allclose(curve.step, [10, 20, 30, 40, 50, 60, 70, 80])
    np.testing.assert_allclose(
        curve.pass_rate, [0.41, 0.42, 0.53, 0.54, 0.55, 0.56, 0.57, 0.58], atol=1e-6
    )
    assert curve.r0_observed == pytest.approx(0.4)
    assert "later file" in notes(curve)


def test_tensorboard_torn_tail_and_subfolders(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    for run in ("one", "two"):
        writer = SummaryWriter(str(tmp_path / run))
        for step in range(1, 8):
            writer.add_scalar("eval/accuracy", step / 10, step)
        writer.close()
    for file in (tmp_path / "two").iterdir():
        file.write_bytes(file.read_bytes()[:-5])
    one, two = scaling.read_curves(tmp_path)
    assert (one.name, two.name) == ("one", "two")
    assert (len(one), len(two)) == (7, 6)


def test_mlflow_store(tmp_path):
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE runs (run_uuid TEXT, name TEXT, lifecycle_stage TEXT)")
        db.execute(
            "CREATE TABLE metrics (key TEXT, value REAL, timestamp INTEGER, run_uuid TEXT, "
            "step INTEGER, is_nan INTEGER)"
        )
        db.executemany(
            "INSERT INTO runs VALUES (?, ?, ?)",
            [("a" * 32, "good", "active"), ("b" * 32, "gone", "deleted")],
        )
        for step in range(9):
            nan = step == 4
            # MLflow stores infinity as the largest double
            value = {4: 0.0, 6: 1.7976931348623157e308}.get(step, 0.4 + step / 100)
            for run in ("a" * 32, "b" * 32):
                db.execute(
                    "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)",
                    ("eval/pass_rate", value, step, run, step, nan),
                )
                db.execute(
                    "INSERT INTO metrics VALUES ('flops', ?, ?, ?, ?, 0)",
                    (step * 1e20, step, run, step),
                )
    db.close()
    curve = scaling.read_curve(path)
    assert (curve.name, curve.unit) == ("good", "flops")
    assert curve.step.tolist() == [1, 2, 3, 5, 7, 8]
    assert "2 rows have a NaN or infinite pass rate and were dropped: step 4, 6" in notes(curve)


def test_trackio_store(tmp_path):
    path = tmp_path / "project.db"
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, "
            "step INTEGER, metrics TEXT)"
        )
        for run in ("x", "y"):
            for step in range(1, 8):
                db.execute(
                    "INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES ('', ?, ?, ?)",
                    (
                        run,
                        step,
                        json.dumps({"eval": {"acc": 0.3 + step / 50}, "tokens": step * 1e6}),
                    ),
                )
    db.close()
    x, y = scaling.read_curves(tmp_path)
    assert (x.name, y.name, x.unit) == ("x", "y", "tokens")
    np.testing.assert_allclose(x.pass_rate, 0.3 + np.arange(1, 8) / 50)


def test_other_databases_are_refused(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE things (id INTEGER)")
    db.close()
    with pytest.raises(InputError, match="tables: things"):
        scaling.read_curve(path)
    path.write_bytes(b"SQLite format 3\x00" + b"junk" * 100)
    with pytest.raises(InputError, match="cannot be read as SQLite"):
        scaling.read_curve(path)


def test_huggingface_trainer_state(tmp_path):
    history = [{"step": i, "loss": 1.0} for i in range(1, 10)]
    history += [
        {"step": i, "eval_accuracy": 0.4 + i / 100, "total_flos": i * 1e15} for i in range(1, 10)
    ]
    path = write(tmp_path / "trainer_state.json", json.dumps({"log_history": history, "epoch": 1}))
    curve = scaling.read_curve(path)
    assert (curve.unit, len(curve)) == ("total_flos", 9)
