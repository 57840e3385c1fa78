import random
from collections.abc import Iterable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import LlamaForCausalLM

from scalerl.errors import InputError, RunError
from scalerl.generate.engine import Engine
from scalerl.generate.sampling import SamplingParams, request_seed
from scalerl.generate.slots import Interruption
from scalerl.generate.thinking import ending_in_ids
from scalerl.messages import Completion, Request
from scalerl.model.logprobs import token_logprobs
from scalerl.model.tiny import tiny_model

END, CLOSE = 1, 3


def sharp_model(seed: int = 0, kv_heads: int = 1) -> LlamaForCausalLM:
    """Random weights whose distributions are far from uniform."""
    model = tiny_model(seed=seed, kv_heads=kv_heads)
    with torch.no_grad():
        model.lm_head.weight.mul_(15)
    return model


def make_requests(groups: int, samples: int, *, seed: int = 0, budgets=(None,)) -> list[Request]:
    rng = random.Random(seed)
    out = []
    for group in range(groups):
        prompt = tuple(rng.randrange(4, 32) for _ in range(rng.randint(1, 14)))
        for sample in range(samples):
            key = request_seed(seed, "test", group, "", sample)
            budget = rng.choice(budgets)
            out.append(
                Request(
                    group=group, sample=sample, prompt_ids=prompt, seed=key, interrupt_at=budget
                )
            )
    return out


def make_engine(
    model, *, slots=5, max_new=20, interruption=None, ends=(END,), static=False, **options
) -> Engine:
    params = SamplingParams(max_new_tokens=max_new, **options)
    return Engine(
        model,
        slots=slots,
        max_length=14 + max_new,
        params=params,
        interruption=interruption,
        end_ids=ends,
        static=static,
    )


def finish(engine: Engine) -> list[Completion]:
    done = []
    while engine.has_work:
        done += engine.step()
    return done


def complete(engine: Engine, requests: Sequence[Request]) -> dict[tuple[int, int], Completion]:
    engine.submit(requests)
    return {(c.group, c.sample): c for c in finish(engine)}


def trainer_logprobs(model, request: Request, done: Completion, temperature=1.0):
    start = len(request.prompt_ids)
    end = start + len(done.token_ids)
    ids = torch.tensor([request.prompt_ids + done.token_ids + (0,) * 4])
    scored = torch.zeros_like(ids, dtype=torch.bool)
    scored[0, start:end] = True
    with torch.no_grad():
        logp, entropy = token_logprobs(model, ids, scored, temperature=temperature)
    return logp[0, start:end], entropy[0, start:end]


def worst_mismatch(model, request: Request, done: Completion, tokens: Iterable[int] | None = None):
    """Largest |log π_train − log π_gen| over the mask-1 tokens, or those of them that are given."""
    logp, _ = trainer_logprobs(model, request, done)
    wanted = range(len(done.token_ids)) if tokens is None else tokens
    gaps = [abs(logp[t].item() - done.logp_gen[t]) for t in wanted if done.mask[t]]
    return max(gaps, default=0.0)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_greedy_equals_hf_generate_with_batch_mates_and_slot_reuse(kv_heads):
    model = sharp_model(kv_heads=kv_heads).eval()
    requests = make_requests(12, 2)
    free = complete(make_engine(model, greedy=True, ends=()), requests).values()
    share = {t: sum(t in c.token_ids for c in free) / len(free) for t in range(32)}
    ends = [min(share, key=lambda t: abs(share[t] - 0.5))]  # reached by some, not by all
    done = complete(make_engine(model, slots=5, greedy=True, ends=ends), requests)
    assert len(done) == len(requests)
    for request in requests:
        out = model.generate(
            torch.tensor([request.prompt_ids]),
            attention_mask=torch.ones(1, len(request.prompt_ids), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=ends,
            pad_token_id=0,
        )
        expected = out[0, len(request.prompt_ids) :].tolist()
        got = done[request.group, request.sample]
        assert list(got.token_ids) == expected
        assert got.finish == ("stop" if expected[-1] in ends else "length")
    assert {c.finish for c in done.values()} == {"stop", "length"}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_logprobs_and_entropy_are_the_trainers(temperature):
    model = sharp_model(kv_heads=2)
    rule = Interruption(
        phrase_ids=(9, 8, CLOSE), end_thinking=ending_in_ids((CLOSE,)), solution_tokens=5
    )
    requests = make_requests(20, 3, budgets=(None, 2, 6))
    engine = make_engine(model, interruption=rule, temperature=temperature)
    done = complete(engine, requests)
    assert 10 < sum(c.interrupted for c in done.values()) < 50
    for request in requests:
        got = done[request.group, request.sample]
        logp, entropy = trainer_logprobs(model, request, got, temperature)
        sampled = torch.tensor(got.mask) == 1
        recorded = torch.tensor(got.logp_gen)
        assert (logp - recorded)[sampled].abs().max() <= 1e-5
        assert not recorded[~sampled].any()
        assert got.entropy == pytest.approx(entropy[sampled].mean().item(), abs=1e-5)


def rows_are_independent() -> bool:
    """Whether this machine computes a row of a product alike whatever rows are beside it."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    w = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([torch.nn.functional.linear(row.expand(4, -1), w)[:1] for row in x])
    beside = [torch.nn.functional.linear(x[:m], w) for m in range(4, 65)]
    return all(torch.equal(b, alone[: len(b)]) for b in beside)


def test_logprobs_agree_where_the_model_amplifies_rounding():
    """Sharp attention: two plain FP32 implementations differ by 1.8e-5 on these tokens."""
    model = sharp_model()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(20)
    rule = Interruption(
        phrase_ids=(9, 8, CLOSE), end_thinking=ending_in_ids((CLOSE,)), solution_tokens=5
    )
    requests = make_requests(20, 3, budgets=(None, 2, 6))
    done = complete(make_engine(model, slots=9, interruption=rule), requests)
    worst = max(worst_mismatch(model, r, done[r.group, r.sample]) for r in requests)
    assert worst <= 5e-5
    assert worst == 0.0 or not rows_are_independent()


def test_bfloat16_weights_with_an_fp32_head_agree_as_far_as_bfloat16_goes():
    model = sharp_model().to(torch.bfloat16)
    requests = make_requests(6, 2)
    done = complete(make_engine(model), requests)
    worst = max(worst_mismatch(model, r, done[r.group, r.sample]) for r in requests)
    assert 0 < worst < 0.2


def test_neighbours_and_order_of_arrival_change_no_sample():
    model = sharp_model()
    requests = make_requests(10, 4)
    alone = {
        (r.group, r.sample): complete(make_engine(model, slots=1), [r])[r.group, r.sample]
        for r in requests
    }
    shuffled = random.Random(1).sample(requests, len(requests))
    for slots, order in ((3, requests), (40, requests), (7, shuffled), (64, shuffled)):
        done = complete(make_engine(model, slots=slots), order)
        assert {k: c.token_ids for k, c in done.items()} == {
            k: c.token_ids for k, c in alone.items()
        }
    late = make_engine(model, slots=6)
    late.submit(shuffled[:15])
    first = [c for _ in range(4) for c in late.step()]
    late.submit(shuffled[15:])
    done = {(c.group, c.sample): c.token_ids for c in first + finish(late)}
    assert done == {k: c.token_ids for k, c in alone.items()}


def test_the_same_run_gives_the_same_bits():
    requests = make_requests(8, 4)
    a, b = (complete(make_engine(sharp_model(), slots=9), requests) for _ in range(2))
    assert a == b


def test_sampled_frequencies_are_the_softmax():
    model = sharp_model()
    prompt = (5, 9, 12)
    requests = [
        Request(group=0, sample=i, prompt_ids=prompt, seed=request_seed(7, "chi", 0, "p", i))
        for i in range(5000)
    ]
    done = complete(make_engine(model, slots=1000, max_new=1), requests)
    counts = torch.zeros(32)
    for c in done.values():
        counts[c.token_ids[0]] += 1
    with torch.no_grad():
        p = torch.softmax(model(torch.tensor([prompt])).logits[0, -1].double(), -1)
    large = p * 5000 >= 5
    observed = torch.cat([counts[large], counts[~large].sum()[None]]).numpy()
    expected = torch.cat([p[large], p[~large].sum()[None]]).numpy() * 5000
    assert large.sum() > 10
    assert chisquare(observed, expected * 5000 / expected.sum()).pvalue > 1e-3


def test_one_prompt_is_computed_once_and_then_copied():
    model = sharp_model()
    fed = []
    handle = model.model.register_forward_pre_hook(
        lambda _, __, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    prompt = tuple(range(4, 14))
    requests = [Request(group=0, sample=i, prompt_ids=prompt, seed=i) for i in range(8)]
    engine = make_engine(model, slots=8)
    engine.submit(requests[:5])
    engine.step()
    engine.submit(requests[5:])
    engine.step()
    handle.remove()
    assert fed == [5 + 9, 8]  # the second wave copies from a completion still in flight


def test_any_of_several_end_ids_ends_and_is_kept():
    model = sharp_model()
    requests = make_requests(30, 2)
    ends = (END, 17, 25)
    done = complete(make_engine(model, ends=ends, max_new=30), requests)
    stopped = [c for c in done.values() if c.finish == "stop"]
    assert {c.token_ids[-1] for c in stopped} == set(ends)
    for c in done.values():
        assert not set(c.token_ids[:-1]) & set(ends)
        assert (c.token_ids[-1] in ends) == (c.finish == "stop")
        assert c.mask[-1] == 1
        assert len(c.token_ids) == len(c.logp_gen) == len(c.mask)


def test_an_end_id_in_the_prompt_or_used_as_padding_ends_nothing():
    model = sharp_model()
    model.config.pad_token_id = END
    requests = [Request(group=i, sample=0, prompt_ids=(END, 5 + i, END), seed=i) for i in range(10)]
    done = complete(make_engine(model, slots=4), requests)
    for request in requests:
        got = done[request.group, 0]
        assert worst_mismatch(model, request, got) <= 1e-5
        assert (got.token_ids[-1] == END) == (got.finish == "stop")
    assert any(len(c.token_ids) > 1 for c in done.values())


def test_weights_in_flight_show_in_segments_and_later_requests_see_only_the_new_ones():
    old, new = sharp_model(0), sharp_model(1)
    serving = sharp_model(0)
    requests = make_requests(12, 2)
    engine = make_engine(serving, slots=6)
    engine.submit(requests)
    done = [c for _ in range(4) for c in engine.step()]
    engine.load_weights(dict(new.named_parameters()), 7)
    assert engine.version == 7
    done += finish(engine)
    by_key = {(r.group, r.sample): r for r in requests}
    kinds = set()
    for c in done:
        request = by_key[c.group, c.sample]
        versions = tuple(v for _, v in c.segments)
        kinds.add(versions)
        assert c.segments[0][0] == 0
        assert c.oldest_version == versions[0]
        if versions == (7,):
            assert worst_mismatch(new, request, c) <= 1e-5
        else:
            switch = c.segments[1][0] if len(versions) == 2 else len(c.token_ids)
            assert switch < len(c.token_ids) or versions == (0,)
            assert worst_mismatch(old, request, c, range(switch)) <= 1e-5
    assert (0, 7) in kinds
    assert (7,) in kinds


def test_stale_cache_stays_unless_it_is_recomputed():
    new = sharp_model(1)
    mismatch = {}
    for recompute in (False, True):
        engine = make_engine(sharp_model(0), slots=6, max_new=12)
        requests = make_requests(6, 1)
        engine.submit(requests)
        done = [c for _ in range(3) for c in engine.step()]
        engine.load_weights(dict(new.named_parameters()), 1, recompute_kv=recompute)
        done += finish(engine)
        mismatch[recompute] = max(
            worst_mismatch(new, requests[c.group], c, range(c.segments[1][0], len(c.token_ids)))
            for c in done
            if len(c.segments) == 2
        )
    assert mismatch[True] <= 1e-5
    assert mismatch[False] > 1e-2


def test_loading_the_same_weights_changes_nothing_but_the_version():
    model = sharp_model()
    requests = make_requests(8, 2)
    plain = complete(make_engine(model), requests)
    engine = make_engine(model)
    engine.submit(requests)
    done, version = [], 0
    while engine.has_work:
        done += engine.step()
        version += 1
        engine.load_weights({k: v.clone() for k, v in model.named_parameters()}, version)
    for c in done:
        same = plain[c.group, c.sample]
        assert (c.token_ids, c.logp_gen) == (same.token_ids, same.logp_gen)
        first = c.oldest_version
        assert c.segments == tuple((t, first + t) for t in range(len(c.token_ids)))


def test_versions_that_no_token_saw_are_in_no_segment():
    model = sharp_model()
    engine = make_engine(model, slots=2, max_new=3, ends=())
    weights = dict(model.named_parameters())
    engine.submit(make_requests(2, 1))
    engine.step()
    engine.load_weights(weights, 1)
    engine.load_weights(weights, 2)
    engine.step()
    (a, b) = engine.step()
    assert a.segments == b.segments == ((0, 0), (1, 2))


def test_weights_with_other_names_or_shapes_are_refused_whole():
    model = sharp_model()
    engine = make_engine(model)
    good = {k: v.detach() + 1 for k, v in model.named_parameters()}
    before = model.lm_head.weight.clone()
    for bad, message in (
        ({k: v for k, v in good.items() if k != "lm_head.weight"}, "lack"),
        (good | {"extra": before}, "unknown"),
        (good | {"lm_head.weight": before[:, :3]}, "shape"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.load_weights(bad, 1)
        assert torch.equal(model.lm_head.weight, before)
    assert engine.version == 0


def test_the_model_is_given_back_as_it_was():
    model = sharp_model()
    ids = torch.tensor([[5, 6, 7, 8]])
    before = model(ids).logits
    name = model.config._attn_implementation
    complete(make_engine(model), make_requests(3, 2))
    assert model.config._attn_implementation == name
    assert torch.equal(model(ids).logits, before)


def test_two_engines_on_one_model_do_not_touch_each_other():
    model = sharp_model()
    requests = make_requests(8, 2)
    expected = complete(make_engine(model), requests)
    a, b = make_engine(model), make_engine(model)
    a.submit(requests)
    b.submit(requests[::-1])
    done_a, done_b = [], []
    while a.has_work or b.has_work:
        done_a += a.step()
        done_b += b.step()
    for done in (done_a, done_b):
        assert {(c.group, c.sample): c.token_ids for c in done} == {
            k: c.token_ids for k, c in expected.items()
        }


def test_weights_that_are_not_finite_end_the_run():
    model = sharp_model()
    engine = make_engine(model)
    engine.load_weights({k: v * torch.nan for k, v in model.named_parameters()}, 3)
    engine.submit(make_requests(1, 1))
    with pytest.raises(RunError, match="version 3"):
        engine.step()


def test_requests_that_cannot_fit_are_refused_all_together():
    engine = make_engine(sharp_model())
    good = Request(group=0, sample=0, prompt_ids=(5,) * 14, seed=0)
    for bad, message in (((5,) * 15, "exceed the length of 34"), ((), "empty")):
        with pytest.raises(InputError, match=message):
            engine.submit([good, Request(group=1, sample=0, prompt_ids=bad, seed=0)])
        assert engine.queued == 0
    assert not engine.has_work
    assert engine.step() == []


@settings(max_examples=40, deadline=None)
@given(
    slots=st.integers(1, 6),
    groups=st.integers(1, 6),
    events=st.lists(st.tuples(st.integers(0, 4), st.sampled_from([None, None, False, True]))),
)
def test_tokens_in_flight_and_finished_are_all_that_was_generated(slots, groups, events):
    """Each event: how many requests arrive before a step, and whether weights do (and how)."""
    rule = Interruption(
        phrase_ids=(9, CLOSE), end_thinking=ending_in_ids((CLOSE,)), solution_tokens=2
    )
    engine = make_engine(MODEL, slots=slots, max_new=8, interruption=rule, ends=(END, 17))
    requests = make_requests(groups, 3, budgets=(None, 0, 3, 7))
    waiting, finished = list(requests), []
    turns = iter(events)
    while waiting or engine.has_work:
        arrive, recompute = next(turns, (len(waiting), None))
        engine.submit(waiting[:arrive])
        del waiting[:arrive]
        if recompute is not None:
            engine.load_weights(WEIGHTS, engine.version + 1, recompute_kv=recompute)
        before = engine.queued + engine.active
        done = engine.step()
        finished += done
        assert engine.active + len(done) == min(slots, before)
        assert engine.tokens_generated == engine.tokens_in_flight + sum(
            len(c.token_ids) for c in finished
        )
        assert len(finished) + engine.active + engine.queued + len(waiting) == len(requests)
    assert engine.tokens_in_flight == 0
    assert {(c.group, c.sample): c.token_ids for c in finished} == {
        (r.group, r.sample): alone(r, rule).token_ids for r in requests
    }
    for c in finished:
        assert 1 <= len(c.token_ids) <= 8
        assert c.interrupted == (0 in c.mask)
        assert [t for t, _ in c.segments] == sorted({t for t, _ in c.segments})


def alone(request: Request, rule: Interruption) -> Completion:
    key = (request.group, request.sample, request.interrupt_at)
    if key not in ALONE:
        engine = make_engine(MODEL, slots=1, max_new=8, interruption=rule, ends=(END, 17))
        (ALONE[key],) = complete(engine, [request]).values()
    return ALONE[key]


MODEL = sharp_model()
WEIGHTS = {name: weight.detach().clone() for name, weight in MODEL.named_parameters()}
ALONE: dict[tuple[int, int, int | None], Completion] = {}
