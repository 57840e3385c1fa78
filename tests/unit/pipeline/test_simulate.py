"""The simulator against cases worked out by hand, and its promises on random machines."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.cli.main import main
from scalerl.config.axes import Pipeline, PpoOffPolicy, RegimeConfig, Synchronous
from scalerl.pipeline.simulate import Machine, Workload, parse_lengths, simulate, splits

MACHINE = Machine(
    generators=1,
    trainers=1,
    slots=100,
    decode_base_s=0.1,
    decode_slot_s=0.0,
    train_base_s=3.0,
    train_token_s=0.0,
)


def fixed(size: int = 20) -> Workload:
    return Workload(
        regime=Synchronous(), groups=2, completions=2, steps=10, length=lambda rng: size
    )


def test_synchronous_is_generation_then_training_in_turn() -> None:
    """20 tokens at .1 s, then 3 s: 5 s a step, of which each side waits for the other."""
    result = simulate(MACHINE, fixed())
    assert result.seconds == pytest.approx(50.0)
    assert result.generator_idle_share == pytest.approx(0.6)
    assert result.trainer_idle_share == pytest.approx(0.4)
    assert result.tokens_trained == 10 * 4 * 20
    assert result.trained_per_device_second == pytest.approx(800 / 100)
    assert set(result.staleness) == {0}


def test_alternating_generates_a_phase_then_takes_its_steps() -> None:
    """Two steps a phase: 2 s for twice the completions at once, then 6 s."""
    result = simulate(MACHINE, dataclasses.replace(fixed(), regime=PpoOffPolicy(k=2)))
    assert result.seconds == pytest.approx(5 * 8.0)
    assert Counter(result.staleness) == {0: 20, 1: 20}


def test_streaming_hides_generation_behind_training() -> None:
    """After the first 2 s the trainer never waits."""
    result = simulate(MACHINE, dataclasses.replace(fixed(), regime=Pipeline(k=4)))
    assert result.seconds == pytest.approx(2.0 + 30.0)
    assert result.trainer_idle_share == pytest.approx(2 / 32)
    assert max(result.staleness) <= 4


def test_slots_share_the_device() -> None:
    """4 completions, 2 slots: two rounds of 20 tokens at .1 + 2 × .05 s."""
    machine = dataclasses.replace(MACHINE, slots=2, decode_slot_s=0.05, train_base_s=1.0)
    assert simulate(machine, fixed()).seconds == pytest.approx(10 * (2 * 20 * 0.2 + 1.0))


def test_trainers_share_a_step_and_publishing_stops_the_generators() -> None:
    machine = dataclasses.replace(
        MACHINE, trainers=4, train_base_s=1.0, train_token_s=0.1, publish_s=0.5
    )
    result = simulate(machine, fixed())
    assert result.seconds == pytest.approx(10 * (2.0 + 1.0 + 80 * 0.1 / 4) + 9 * 0.5)


REGIMES: st.SearchStrategy[RegimeConfig] = st.one_of(
    st.builds(Pipeline, k=st.integers(0, 8)),
    st.builds(PpoOffPolicy, k=st.integers(1, 8)),
    st.just(Synchronous()),
)


@settings(max_examples=120, deadline=None)
@given(
    regime=REGIMES,
    generators=st.integers(1, 5),
    slots=st.integers(1, 40),
    groups=st.integers(1, 6),
    train_s=st.floats(0.01, 20),
    publish_s=st.floats(0, 2),
    spread=st.floats(0.1, 2),
    seed=st.integers(0, 10**6),
)
def test_any_machine_keeps_the_bound_and_gets_to_the_end(
    regime: RegimeConfig,
    generators: int,
    slots: int,
    groups: int,
    train_s: float,
    publish_s: float,
    spread: float,
    seed: int,
) -> None:
    machine = dataclasses.replace(
        MACHINE, generators=generators, slots=slots, train_base_s=train_s, publish_s=publish_s
    )
    work = Workload(
        regime=regime,
        groups=groups,
        completions=3,
        steps=12,
        length=parse_lengths(f"lognormal:30:{spread}:200"),
        seed=seed,
    )
    result = simulate(machine, work)
    k = {"pipeline": getattr(regime, "k", 0), "ppo_off_policy": getattr(regime, "k", 1) - 1}
    assert result.steps == 12
    assert len(result.staleness) == 12 * groups * 3
    assert min(result.staleness) >= 0
    assert max(result.staleness) <= k.get(regime.type, 0)
    assert -1e-9 <= result.staleness_token_mean <= k.get(regime.type, 0) + 1e-9
    assert -1e-9 <= result.generator_idle_share <= 1
    assert -1e-9 <= result.trainer_idle_share <= 1
    assert simulate(machine, work) == result


def test_the_best_split_of_a_slow_trainer_has_more_trainers() -> None:
    work = dataclasses.replace(fixed(), regime=Pipeline(k=4), groups=8)
    machine = dataclasses.replace(
        MACHINE, slots=4, decode_slot_s=0.02, train_base_s=0.0, train_token_s=0.01
    )
    slow = dataclasses.replace(machine, train_token_s=0.1)
    fast_best, slow_best = splits(machine, work, 20)[0][0], splits(slow, work, 20)[0][0]
    assert slow_best < fast_best


def test_lengths_are_of_the_distribution_asked_for(tmp_path: object) -> None:
    draw, rng = parse_lengths("lognormal:6000:0.7:1000000"), random.Random(0)
    lengths = [draw(rng) for _ in range(20000)]
    mean = sum(lengths) / len(lengths)
    spread = (sum((x - mean) ** 2 for x in lengths) / len(lengths)) ** 0.5 / mean
    assert mean == pytest.approx(6000, rel=0.02)
    assert spread == pytest.approx(0.7, rel=0.05)
    assert max(parse_lengths("lognormal:90:1:100")(rng) for _ in range(99)) == 100
    with pytest.raises(ValueError, match="lognormal:MEAN"):
        parse_lengths("normal:3")


def test_the_command_prints_what_a_planner_asks(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--generators", "6", "--trainers", "2", "--steps", "12"]
    assert main(words) == 0
    text = capsys.readouterr().out
    for word in ("idle", "tokens a device-second", "staleness", "best split"):
        assert word in text
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["splits"][0]["trained_per_device_second"] >= (
        found["result"]["trained_per_device_second"] * 0.999
    )
    assert sum(found["result"]["staleness"].values()) == 12 * 48 * 16


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slots", "0"], "--slots: must be at least 1"),
        (["--regime", "ppo_off_policy", "--k", "0"], "--k: must be at least 1"),
        (["--lengths", "file:/nowhere"], "--lengths: "),
        (["--tokens-per-second", "1000000"], "faster than one slot alone"),
    ],
)
def test_bad_input_is_named(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["simulate", *words]) == 2
    assert said in capsys.readouterr().err
