"""The end of thinking is found in the text, in the tokens of a real tokenizer and its template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from scalerl.config import load_config
from scalerl.data.template import messages_of, opens_thinking, template_ids
from scalerl.errors import InputError
from scalerl.generate.sampling import SamplingParams
from scalerl.generate.slots import Slots
from scalerl.generate.thinking import ending_in_ids, ending_in_text
from scalerl.messages import Request
from scalerl.model.load import end_ids
from scalerl.pipeline.run import make_interruption
from scalerl.rewards.extraction import final_answer

TEXT = "</think>"
PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
PAPER = [
    *("--length.phrase", PHRASE, "--length.low", "10", "--length.high", "12"),
    *("--sampling.max_new_tokens", "80", "--length.solution_tokens", "30"),
]


def byte_level_bpe() -> PreTrainedTokenizerFast:
    """Merges ` </`, `think` and `>\\n`, so that the end of thinking is other tokens after a space
    and before a line break; its template opens the thinking."""
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    lines = ["now. </think>\n", "a </think>\n\nthen", "so</think>", "think</ <think>\n", PHRASE]
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|end|>", "<|stop|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator(lines * 50, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<|end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"
    )
    return tokenizer


TOKENIZER = byte_level_bpe()
IDS = list(range(len(TOKENIZER)))


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_the_tokenizer_writes_one_end_in_several_ways():
    after_a_space, at_a_break, plain = (
        encode(t) for t in ("x </think>", "x</think>\n", "</think>")
    )
    assert after_a_space[-len(plain) :] != plain
    assert at_a_break[-len(plain) :] != plain


END = ending_in_text(TEXT, TOKENIZER.convert_ids_to_tokens(IDS))
NEAR = [i for i in IDS if set(TOKENIZER.convert_ids_to_tokens(i)) & set(TEXT)]


@given(st.lists(st.sampled_from(NEAR) | st.sampled_from(IDS), max_size=12), st.booleans())
def test_the_end_is_reached_where_the_text_has_it(ids: list[int], planted: bool):
    if planted:
        ids = [*ids, *encode("y </think>\n")]
    assert END.reached(ids) == (TEXT in TOKENIZER.decode(ids))


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=5),
    st.lists(st.integers(0, 3), max_size=30),
)
def test_tokens_in_a_row_overlapping_ones_too(wanted: list[int], ids: list[int]):
    found = any(ids[i : i + len(wanted)] == wanted for i in range(len(ids)))
    assert ending_in_ids(wanted).reached(ids) == found


@given(st.text("ab", min_size=1, max_size=5), st.lists(st.text("abc", max_size=4), max_size=12))
def test_text_across_pieces_overlapping_ones_too(wanted: str, pieces: list[str]):
    end = ending_in_text(wanted, pieces)
    assert end.reached(range(len(pieces))) == (wanted in "".join(pieces))


def completed(writes: list[int], interrupt_at: int) -> tuple[str, list[int], bool]:
    """Text, mask and whether it was interrupted, of a completion whose model would write this."""
    rule = make_interruption(load_config(overrides=PAPER), TOKENIZER)
    slots = Slots(
        1,
        params=SamplingParams(max_new_tokens=80),
        interruption=rule,
        end_ids=(TOKENIZER.eos_token_id,),
        vocabulary=len(TOKENIZER),
        device=torch.device("cpu"),
    )
    prompt = template_ids(messages_of("1+1?"), TOKENIZER)
    slots.admit(
        [0], [Request(group=0, sample=0, prompt_ids=prompt, seed=0, interrupt_at=interrupt_at)]
    )
    zero = torch.zeros(1)
    for step in range(80):
        wanted = writes[min(step, len(writes) - 1)]
        if done := slots.advance(torch.tensor([wanted]), zero, zero):
            return TOKENIZER.decode(done[0].token_ids), done[0].mask, done[0].interrupted
    raise AssertionError("it never ended")


@pytest.mark.parametrize("closing", [" </think>\n", "</think>", "\n</think>\n\n"])
def test_a_model_that_ends_its_thinking_in_any_spelling_is_not_interrupted(closing: str):
    writes = [*encode(f"1{closing}<answer>2</answer>"), TOKENIZER.eos_token_id]
    text, mask, interrupted = completed(writes, interrupt_at=12)
    assert not interrupted
    assert set(mask) == {1}
    assert final_answer(text.removesuffix("<|end|>"), thinking_open=True) == "2"


def test_the_papers_phrase_ends_the_thinking_and_the_answer_after_it_counts():
    assert opens_thinking(TOKENIZER)
    phrase = encode(PHRASE)
    answer = [*encode("<answer>2</answer>"), TOKENIZER.eos_token_id]
    writes = [*encode("x" * 12)[:12]]
    writes += [writes[0]] * (12 - len(writes) + len(phrase)) + answer
    text, mask, interrupted = completed(writes, interrupt_at=12)
    assert interrupted
    assert text.count(PHRASE) == 1
    assert mask == [1] * 12 + [0] * len(phrase) + [1] * len(answer)
    assert final_answer(text.removesuffix("<|end|>"), thinking_open=True) == "2"


def test_a_phrase_that_cannot_work_is_refused_by_its_key():
    with pytest.raises(InputError, match=r"length\.phrase: .*must end with </think>"):
        load_config(overrides=["--length.phrase", "stop"])
    size = 12 + len(encode(PHRASE))
    one_left, none_left = (
        load_config(overrides=[*PAPER, "--sampling.max_new_tokens", str(limit)])
        for limit in (size + 1, size)
    )
    assert make_interruption(one_left, TOKENIZER) is not None
    with pytest.raises(InputError, match=r"length\.high: .* leave no room for an answer"):
        make_interruption(none_left, TOKENIZER)
    none = load_config(overrides=["--length.type", "none"])
    assert make_interruption(none, TOKENIZER) is None


def test_a_folder_may_name_several_ends(tmp_path: Path):
    assert end_ids(tmp_path, TOKENIZER) == (0,)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 0]}))
    assert end_ids(tmp_path, TOKENIZER) == (0, 1, 5)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 7}}))
    assert end_ids(tmp_path, TOKENIZER) == (0, 1, 7)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match=r"config\.json: cannot be read"):
        end_ids(tmp_path, TOKENIZER)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(InputError, match=r"generation_config\.json: cannot be read"):
        end_ids(tmp_path, TOKENIZER)
    with pytest.raises(InputError, match="names a token that ends a text"):
        end_ids(
            tmp_path / "none", PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
        )
