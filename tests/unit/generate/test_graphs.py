"""Decode steps of fixed sizes: the same completions as steps of just the size that is needed.

Capturing and replaying need a card; here the very steps that would be captured run as they are,
and a stand-in for CUDA's graphs checks what is captured, when, and how often.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_engine import CLOSE, END, finish, make_requests, sharp_model
from transformers import LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from scalerl.generate.engine import Engine
from scalerl.generate.graphs import Decoded, StaticDecode, capturable, size_of
from scalerl.generate.sampling import SamplingParams
from scalerl.generate.slots import Interruption
from scalerl.generate.thinking import ending_in_ids
from scalerl.messages import Completion, Request

RULE = Interruption(
    phrase_ids=(9, 8, CLOSE), end_thinking=ending_in_ids((CLOSE,)), solution_tokens=5
)


def engine_of(model: LlamaForCausalLM, static: bool, slots: int, max_new: int = 20) -> Engine:
    return Engine(
        model,
        slots=slots,
        max_length=14 + max_new,
        params=SamplingParams(max_new_tokens=max_new),
        interruption=RULE,
        end_ids=(END,),
        static=static,
    )


def run(engine: Engine, requests: list[Request], *, update: bool) -> dict[Any, Completion]:
    """Completions of requests that come in two waves, with new weights in between."""
    half = len(requests) // 2
    engine.submit(requests[:half])
    done = [c for _ in range(6) for c in engine.step()]
    if update:
        new = {n: p.detach() * 1.01 for n, p in engine.model.named_parameters()}
        engine.load_weights(new, 1, recompute_kv=True)
    engine.submit(requests[half:])
    done += finish(engine)
    return {(c.group, c.sample): c for c in done}


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("slots", [3, 7, 40])
def test_completions_are_those_of_steps_of_just_the_size(kv_heads: int, slots: int) -> None:
    requests = make_requests(11, 3, budgets=(None, 2, 6))
    random.Random(1).shuffle(requests)
    plain, static = (
        run(engine_of(sharp_model(kv_heads=kv_heads), how, slots), requests, update=True)
        for how in (False, True)
    )
    assert plain.keys() == static.keys()
    assert len(plain) == len(requests)
    for key, one in plain.items():
        assert static[key].token_ids == one.token_ids
        assert static[key].mask == one.mask
        assert static[key].segments == one.segments
        assert static[key].logp_gen == pytest.approx(one.logp_gen, abs=1e-5)
    assert any(c.interrupted for c in plain.values())


@given(st.integers(1, 5000), st.sampled_from([4, 64]), st.integers(1, 6000))
def test_a_size_holds_what_it_must_and_little_more(count: int, least: int, most: int) -> None:
    size = size_of(min(count, most), least, most)
    assert min(count, most) <= size <= most
    assert size <= max(least, count * 1.25 + 1, count + least)


def test_there_are_a_few_dozen_sizes() -> None:
    assert len({size_of(n, 4, 256) for n in range(1, 257)}) <= 24
    assert len({size_of(n, 64, 32768) for n in range(1, 32769)}) <= 40


def test_what_values_decide_is_not_captured() -> None:
    model = sharp_model()
    assert capturable(model)
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert not capturable(model)
    experts = MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
    )
    assert not capturable(MixtralForCausalLM(experts))


class Recorded:
    """In place of a CUDA graph: what is called while it is captured is called at each replay."""

    made: int = 0
    steps: Any = None

    def __init__(self) -> None:
        Recorded.made += 1
        self.replayed = 0

    def pool(self) -> tuple[int, int]:
        return (0, 7)

    def replay(self) -> None:
        self.replayed += 1
        Recorded.steps(self)


def test_each_size_is_captured_once_and_replayed_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, int]] = []
    pools: list[Any] = []
    outputs: dict[tuple[int, int], Decoded] = {}

    def decode(rows: int, columns: int) -> Decoded:
        calls.append((rows, columns))
        zeros = torch.zeros(rows)
        outputs[rows, columns] = Decoded(sampled_n=zeros.long(), logp_n=zeros, entropy_n=zeros + 1)
        return outputs[rows, columns]

    class Stream:
        def wait_stream(self, other: object) -> None:
            pass

    @contextmanager
    def graph(recorded: Recorded, pool: Any = None):
        pools.append(pool)
        yield

    @contextmanager
    def stream(side: Stream):
        yield

    replays: list[Recorded] = []
    Recorded.made, Recorded.steps = 0, replays.append
    for name, value in {
        "Stream": Stream,
        "stream": stream,
        "current_stream": Stream,
        "CUDAGraph": Recorded,
        "graph": graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    static = StaticDecode(decode, slots=32, length=256, device=torch.device("cuda", 0))
    for n, longest in [(5, 10), (6, 60), (8, 64), (9, 64), (5, 65), (6, 10)]:
        seen = static(n, longest)
        assert len(seen.sampled_n) == len(seen.logp_n) == len(seen.entropy_n) == n
    sizes = [(8, 64), (12, 64), (8, 128)]
    assert calls == [size for size in sizes for _ in range(2)]  # before and in the capture
    assert Recorded.made == 3
    assert len(replays) == 6
    assert pools == [None, (0, 7), (0, 7)]
