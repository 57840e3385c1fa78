"""What is trained are the sampled token ids; text is for the check, and never becomes ids again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scalerl.algorithm.effective import Row, Rules, assemble
from scalerl.messages import Completion, Group, Prompt, Scored
from scalerl.model.logprobs import token_logprobs
from scalerl.model.tiny import tiny_model
from scalerl.pipeline.scoring import Scoring
from scalerl.rewards.scorer import Checked
from scalerl.train.batches import PassLimits

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

from train_rows import make_trainer

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
ENTRIES = ["<pad>", "<eos>", *BYTES, "he", "ll", "llo", "hello"]
HE, LLO, HELLO = (ENTRIES.index(word) for word in ("he", "llo", "hello"))
END = 1


def byte_pairs() -> PreTrainedTokenizerFast:
    """Bytes, and merges that make one token of `hello`."""
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    backend = Tokenizer(models.BPE({entry: i for i, entry in enumerate(ENTRIES)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )


class Reads:
    """A scorer that keeps what it is given to read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def score_now(self, prompt: Prompt, text: str) -> Checked:
        self.read.append(text)
        return Checked("correct" if text == prompt.answer else "wrong", None)


def completion(sample: int, ids: tuple[int, ...], *, ended: bool) -> Completion:
    return Completion(
        group=0,
        sample=sample,
        token_ids=ids,
        logp_gen=tuple(-1.0 - i for i in range(len(ids))),
        mask=(1,) * len(ids),
        segments=((0, 0),),
        finish="stop" if ended else "length",
        interrupted=False,
        entropy=1.0,
    )


def trained_rows(completions: list[Completion]) -> tuple[tuple[Row, ...], list[str]]:
    """Through the scorer and the assembly of a batch, with a tokenizer that only decodes."""
    tokenizer = byte_pairs()
    prompt = Prompt(id="p", text="?", token_ids=(9, 8), answer="hello", task="t")
    scorer = Reads()
    scoring = Scoring(scorer, tokenizer.decode)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        for way in ("encode", "__call__", "_encode_plus"):
            patch.setattr(PreTrainedTokenizerFast, way, lambda *a, **k: pytest.fail("tokenised"))
        scored: list[Scored] = [scoring.wait(prompt, c) for c in completions]
        group = Group(index=0, prompt=prompt, admitted_version=0, completions=tuple(scored))
        rows = assemble([group], Rules(truncated="keep")).rows
    return rows, scorer.read


def test_a_word_in_two_pieces_is_trained_in_two_pieces() -> None:
    """D04: `he` + `llo` reads as `hello`, which the tokenizer would write as one token."""
    assert byte_pairs().encode("hello") == [HELLO]
    pieces, wrong = (HE, LLO, END), (HELLO, HELLO, END)
    rows, read = trained_rows([completion(0, pieces, ended=True), completion(1, wrong, ended=True)])
    assert read == ["hello", "hellohello"]
    assert [row.token_ids for row in rows] == [pieces, wrong]
    assert [row.logp_gen for row in rows] == [(-1.0, -2.0, -3.0)] * 2
    assert rows[0].advantage > 0 > rows[1].advantage
    model = tiny_model(seed=0, vocabulary=len(ENTRIES), hidden=16, layers=1, heads=2)
    ids = torch.tensor([[9, 8, *pieces]])
    scored = torch.tensor([[False, False, True, True, True]])
    with torch.no_grad():
        expected = token_logprobs(model, ids, scored)[0][scored]
    seen = make_trainer(PassLimits(rows=4), model=model).step(rows[:1], 0)
    assert torch.allclose(torch.from_numpy(seen.logp_train), expected, atol=1e-6)


def test_half_a_character_at_the_limit_stays_the_byte_that_was_sampled() -> None:
    """D04: cut at the limit after the first byte of é. Its text is a replacement character, which
    would come back as three other tokens."""
    tokenizer = byte_pairs()
    first, _ = tokenizer.encode("é")
    half = (HELLO, first)
    again = tokenizer.encode(tokenizer.decode(list(half)))
    assert again[0] == HELLO
    assert len(again) == 4
    rows, read = trained_rows(
        [completion(0, half, ended=False), completion(1, (HELLO, END), ended=True)]
    )
    assert read == ["hello\N{REPLACEMENT CHARACTER}", "hello"]
    assert [row.token_ids for row in rows] == [half, (HELLO, END)]
    assert [len(row.logp_gen) for row in rows] == [2, 2]
