"""A clock that begins again is refused or added up, never merged; step 0 is the first one only."""

import json
import sqlite3

import numpy as np
import pytest

from scalerl import scaling
from scalerl.errors import InputError

RATES = [round(0.40 + 0.01 * i, 3) for i in range(12)]
CLOCK = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


def table(path, **columns):
    path.write_text(
        "\n".join(
            [
                ",".join(columns),
                *(",".join(map(str, r)) for r in zip(*columns.values(), strict=True)),
            ]
        )
        + "\n"
    )
    return path


def notes(curve):
    return " | ".join(curve.notes)


@pytest.mark.parametrize("jitter", [0.0, 3.0])
def test_step_and_clock_that_restart_together_are_not_merged(tmp_path, jitter):
    clock = [*CLOCK, *(c + jitter for c in CLOCK)]
    path = table(tmp_path / "a.csv", step=[*range(1, 7)] * 2, gpu_hours=clock, pass_rate=RATES)
    with pytest.raises(InputError, match=r"a\.csv:8: 'gpu_hours' falls.*'step' falls too"):
        scaling.read_curve(path)
    curve = scaling.read_curve(path, restarts="add")
    np.testing.assert_allclose(curve.compute, [*CLOCK, *(60 + jitter + c for c in CLOCK)])
    assert curve.pass_rate.tolist() == RATES
    assert curve.step.tolist() == [*range(1, 13)]
    assert "'gpu_hours' restarts at line 8" in notes(curve)
    assert "'step' restarts at line 8" in notes(curve)


def test_a_step_that_restarts_alone_is_blamed(tmp_path):
    path = table(
        tmp_path / "a.csv", step=[*range(6)] * 2, gpu_hours=[*range(1, 13)], pass_rate=RATES
    )
    with pytest.raises(InputError, match=r"a\.csv:8: 'step' falls from 5 \(line 7\) to 0 while"):
        scaling.read_curve(path)
    for restarts in ("add", "sort"):
        curve = scaling.read_curve(path, restarts=restarts)
        # the second step 0 is an evaluation in the middle of the run, not R0
        assert curve.r0_observed == 0.40
        assert curve.compute.tolist() == [*range(2, 13)]
    assert scaling.read_curve(path, restarts="add").step.tolist() == [1, 2, 3, 4, 5, *range(5, 11)]


def test_sorting_a_restarted_clock_keeps_its_second_zero_out_of_r0(tmp_path):
    path = table(
        tmp_path / "a.csv",
        gpu_hours=[0, 1, 2, 3, 4, 5, 0, 1.5, 2.5, 3.5, 4.5, 5.5],
        pass_rate=RATES,
    )
    curve = scaling.read_curve(path, restarts="sort")
    assert curve.r0_observed == 0.40
    assert len(curve) == 10
    assert "1 rows stand at 'gpu_hours' 0 after a restart and were dropped: line 8" in notes(curve)
    added = scaling.read_curve(path, restarts="add")
    assert added.r0_observed == 0.40
    assert added.compute[-1] == 10.5


def test_two_evaluations_of_step_0_are_averaged_and_named(tmp_path):
    path = table(
        tmp_path / "a.csv", gpu_hours=[0, 0, 1, 2, 3], pass_rate=[0.4, 0.42, 0.5, 0.5, 0.6]
    )
    curve = scaling.read_curve(path)
    assert curve.r0_observed == pytest.approx(0.41)
    assert "2 evaluations at step 0 were averaged: line 2, 3" in notes(curve)


@pytest.mark.parametrize(
    ("clock", "line", "count"),
    [
        ([*CLOCK, *CLOCK[:5], 10.0], 8, 2),
        ([*range(1, 12), 1], 13, 1),  # one row after the restart
        (CLOCK[:3] * 4, 5, 3),  # many passes
        (CLOCK[:2] * 6, 4, 5),
        ([*range(1, 9), 7, 8, 9, 10], 10, 1),  # a resume that repeats two evaluations
    ],
)
def test_restarts_without_steps_are_refused_by_row(tmp_path, clock, line, count):
    path = table(tmp_path / "a.csv", gpu_hours=clock, pass_rate=RATES)
    with pytest.raises(
        InputError, match=rf"a\.csv:{line}: 'gpu_hours' falls.*\({count} such rows\)"
    ):
        scaling.read_curve(path)
    assert scaling.read_curve(path, restarts="add").compute[-1] > max(clock)
    assert scaling.read_curve(path, restarts="sort").compute[-1] == max(clock)


@pytest.mark.parametrize("with_steps", [False, True])
def test_shuffled_rows_are_sorted_with_a_note_that_names_them(tmp_path, with_steps):
    order = np.random.default_rng(0).permutation(12)
    columns = {"gpu_hours": 10.0 * (order + 1), "pass_rate": np.array(RATES)[order]}
    if with_steps:
        columns = {"step": order + 1, **columns}
    curve = scaling.read_curve(table(tmp_path / "a.csv", **columns))
    assert curve.pass_rate.tolist() == RATES
    assert "rows are in no order and were sorted by 'gpu_hours'; it falls" in notes(curve)
    assert "first at line" in notes(curve)


def test_a_swapped_pair_is_sorted_where_every_step_agrees(tmp_path):
    order = [0, 1, 3, 2, *range(4, 12)]
    clock, rates = np.arange(12) + 1.0, np.array(RATES)[order]
    columns = {"step": 10 * (clock[order]), "gpu_hours": clock[order], "pass_rate": rates}
    curve = scaling.read_curve(table(tmp_path / "a.csv", **columns))
    assert curve.pass_rate.tolist() == RATES
    assert curve.step.tolist() == (10 * clock).tolist()
    said = (
        "rows out of order were sorted by 'gpu_hours', with which 'step' agrees; it falls 1 times"
    )
    assert f"{said}, first at line 5" in notes(curve)
    # without steps, or with those of a restart, nothing says that this is no restart
    for steps in (None, [10, 20, 40, 20, *range(50, 130, 10)], [*range(10, 130, 10)]):
        some = {k: v for k, v in columns.items() if k != "step"}
        if steps is not None:
            some["step"] = steps
        with pytest.raises(InputError, match=r"a\.csv:5: 'gpu_hours' falls"):
            scaling.read_curve(table(tmp_path / "a.csv", **some))
    same = {**columns, "gpu_hours": [1, 2, 4, 2, *range(5, 13)]}  # compute begins again at a value
    with pytest.raises(InputError, match=r"a\.csv:5: 'gpu_hours' falls"):
        scaling.read_curve(table(tmp_path / "a.csv", **same))


def test_shuffled_rows_whose_steps_disagree_are_refused(tmp_path):
    order = np.random.default_rng(0).permutation(12)
    path = table(tmp_path / "a.csv", step=order[::-1], gpu_hours=order + 1, pass_rate=RATES)
    with pytest.raises(InputError, match="'gpu_hours' falls"):
        scaling.read_curve(path)


def test_a_reward_beside_a_restarted_clock_takes_the_compute_of_its_own_part(tmp_path):
    rows = []
    for part in (0, 1):
        for i in range(1, 7):
            rows.append((i, 10 * i + 5 * part, ""))
            rows.append((i, "", RATES[6 * part + i - 1]))
    step, clock, rate = zip(*rows, strict=True)
    path = table(tmp_path / "a.csv", step=step, gpu_hours=clock, pass_rate=rate)
    curve = scaling.read_curve(path, restarts="add")
    np.testing.assert_allclose(curve.compute, [*CLOCK, *(65.0 + c for c in CLOCK)])
    assert "12 pass rates took the last known 'gpu_hours' before them: line 3" in notes(curve)


def test_a_trackio_run_that_began_again_is_refused(tmp_path):
    path = tmp_path / "project.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name, step, metrics)")
        for i, rate in enumerate(RATES):
            metrics = json.dumps({"acc": rate, "tokens": 1e6 * (i % 6 + 1)})
            db.execute(
                "INSERT INTO metrics (run_name, step, metrics) VALUES ('x', ?, ?)",
                (i % 6 + 1, metrics),
            )
    db.close()
    with pytest.raises(InputError, match=r"step 1: 'tokens' falls"):
        scaling.read_curve(path)
