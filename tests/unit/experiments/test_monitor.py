"""The monitor: which figures alarm, once each, and what an alarm then does to a run."""

import json

import pytest

from scalerl.experiments.monitor import Monitor
from scalerl.pipeline.alarms import Alarm, Alarmed, Watch
from scalerl.pipeline.records import RunDirectory


def step(
    number: int,
    truncation: float = 0.0,
    mismatch: float | None = None,
    interruption: float = 0.0,
) -> dict:
    return {
        "step": number,
        "truncation_rate": truncation,
        "interruption_rate": interruption,
        "equal_weights_mismatch_mean": mismatch,
    }


def evaluation(number: int, pass_rate: float, entropy: float = 0.1) -> dict:
    return {"step": number, "pass_rate": pass_rate, "entropy": entropy}


def test_truncation_is_the_mean_of_three_steps_amber_then_red_once_each():
    monitor = Monitor()
    raised = [
        [(a.kind, a.level) for a in monitor.on_step(step(i, rate))]
        for i, rate in enumerate([0.0, 0.0, 0.2, 0.2, 0.2, 0.2], start=1)
    ]
    # means of the last three: 0, 0, .067, .133, .2, .2
    assert raised == [[], [], [("truncation", "amber")], [("truncation", "red")], [], []]


def test_interruption_warns_at_5_and_at_10_percent_and_is_never_red():
    monitor = Monitor()
    alarms = [a for i in range(1, 9) for a in monitor.on_step(step(i, interruption=0.02 * i))]
    # means of the last three at steps 4 and 7: .06, .12
    assert [(a.kind, a.level, a.step) for a in alarms] == [
        ("interruption", "amber", 4),
        ("interruption", "amber", 7),
    ]
    assert "12.0% of completions" in alarms[1].message


def test_a_sound_run_that_interrupts_a_third_is_not_stopped(tmp_path):
    heard = Heard()
    watch = Watch(
        listener=heard, judge=Monitor(), directory=RunDirectory(tmp_path, 0), action="stop"
    )
    for i in range(1, 9):
        watch.on_step(step(i, interruption=0.34))
    assert [w for w in heard.warnings if "interruption" in w or "cut short" in w]


def test_truncation_alarms_again_after_it_was_in_order():
    monitor = Monitor()
    for i in range(3):
        monitor.on_step(step(i, 0.5))
    for i in range(3, 6):
        assert monitor.on_step(step(i, 0.0)) == [] or i < 5
    again = [a.level for i in range(6, 9) for a in monitor.on_step(step(i, 0.5))]
    assert again[-1:] == ["red"]


def test_truncation_since_is_the_last_step_in_order():
    monitor = Monitor()
    for i in range(1, 11):
        monitor.on_step(step(i))
    alarm = monitor.on_step(step(11, 1.0))[0]
    assert (alarm.step, alarm.since_step, alarm.level) == (11, 10, "red")


def test_mismatch_of_a_bfloat16_model_is_in_order_and_a_broken_head_is_not():
    monitor = Monitor()
    assert monitor.on_step(step(1, mismatch=1e-3)) == []
    assert monitor.on_step(step(2, mismatch=None)) == []
    assert [a.level for a in monitor.on_step(step(3, mismatch=0.02))] == ["amber"]
    assert [a.level for a in monitor.on_step(step(4, mismatch=0.2))] == ["red"]


def test_a_rising_curve_never_alarms():
    monitor = Monitor()
    wiggle = [0.004, -0.003, 0.002, -0.004, 0.001]
    rows = [evaluation(i, 0.3 + 0.02 * i + wiggle[i % 5]) for i in range(25)]
    assert [a for row in rows for a in monitor.on_evaluation(row)] == []


def test_a_collapse_is_red_and_names_where_it_began():
    monitor = Monitor()
    wiggle = [0.004, -0.003, 0.002, -0.004, 0.001]
    rising = [evaluation(i, 0.3 + 0.02 * i + wiggle[i % 5]) for i in range(15)]
    falling = [evaluation(15 + i, 0.58 - 0.05 * i) for i in range(6)]
    alarms = [a for row in [*rising, *falling] for a in monitor.on_evaluation(row)]
    red = next(a for a in alarms if a.kind == "drawdown" and a.level == "red")
    assert 16 <= red.step <= 19
    assert red.since_step == 14


@pytest.mark.parametrize(
    ("pass_rate", "entropy", "levels"),
    [
        (0.5, 0.1, []),
        (0.5, 0.16, ["amber"]),
        (0.5, 0.4, ["red"]),
        (0.5, 0.004, ["amber"]),
        (0.5, 0.0005, ["red"]),
        (0.95, 0.0005, []),  # certain because it is right
    ],
)
def test_entropy_against_its_first_value(pass_rate, entropy, levels):
    monitor = Monitor()
    monitor.on_evaluation(evaluation(0, 0.3, 0.1))
    alarms = monitor.on_evaluation(evaluation(5, pass_rate, entropy))
    assert [a.level for a in alarms if a.kind == "entropy"] == levels


def test_after_a_rollback_later_evaluations_are_forgotten():
    monitor = Monitor()
    for i in range(12):
        monitor.on_evaluation(evaluation(i, 0.3 + 0.02 * i))
    alarms = monitor.on_evaluation(evaluation(4, 0.38))
    assert alarms == []


class Heard:
    def __init__(self):
        self.warnings, self.rows = [], []

    def on_step(self, row):
        self.rows.append(row)

    def on_evaluation(self, row):
        self.rows.append(row)

    def on_warning(self, text):
        self.warnings.append(text)


class Says:
    def __init__(self, *levels):
        self.levels = levels

    def on_step(self, row):
        return [
            Alarm(kind="truncation", level=level, step=3, since_step=1, message="too long")
            for level in self.levels
        ]

    def on_evaluation(self, row):
        return []


@pytest.mark.parametrize(
    ("action", "level", "raises"),
    [
        ("warn", "red", False),
        ("stop", "amber", False),
        ("stop", "red", True),
        ("rollback", "red", True),
    ],
)
def test_an_alarm_is_written_warned_of_and_acted_on(tmp_path, action, level, raises):
    heard = Heard()
    watch = Watch(
        listener=heard, judge=Says(level), directory=RunDirectory(tmp_path, 0), action=action
    )
    if raises:
        with pytest.raises(Alarmed, match="step 3: too long"):
            watch.on_step({"step": 3})
    else:
        watch.on_step({"step": 3})
    assert heard.rows == [{"step": 3}]
    assert heard.warnings == [f"step 3: {level}: too long"]
    written = json.loads((tmp_path / "alarms.jsonl").read_text())
    assert (written["level"], written["action"]) == (level, action if raises else "warn")
