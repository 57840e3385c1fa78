"""Where published data sets keep prompt and answer. Data, so that a user names one word.

A path walks into nested fields: `reward_model.ground_truth`. A prompt is text or a list of chat
messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalerl.errors import InputError

Reward = Literal["math", "code", "exact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One shape of rows."""

    prompt: str
    answer: str
    reward: Reward
    hub: str = ""  # where the set is published
    subset: str = ""  # its configuration there
    split: str = "train"
    hashes: bool = False  # the answer stands behind ####
    beside: tuple[str, ...] = ()  # fields that belong to the answer: together they are one object
    starter: str = ""  # code that the solution has to begin with, shown after the prompt


PLAIN = Columns(prompt="prompt", answer="answer", reward="math")

SHAPES: dict[str, Columns] = {
    "plain": PLAIN,
    "polaris": Columns(
        prompt="problem", answer="answer", reward="math", hub="POLARIS-Project/Polaris-Dataset-53K"
    ),
    "deepcoder": Columns(
        prompt="problem",
        answer="tests",
        reward="code",
        hub="agentica-org/DeepCoder-Preview-Dataset",
        subset="primeintellect",
        starter="starter_code",
    ),
    "dapo": Columns(
        prompt="prompt",
        answer="reward_model.ground_truth",
        reward="math",
        hub="BytedTsinghua-SIA/DAPO-Math-17k",
    ),
    "gsm8k": Columns(
        prompt="question",
        answer="answer",
        reward="math",
        hub="openai/gsm8k",
        subset="main",
        hashes=True,
    ),
    "math500": Columns(
        prompt="problem",
        answer="answer",
        reward="math",
        hub="HuggingFaceH4/MATH-500",
        split="test",
    ),
    "aime24": Columns(
        prompt="problem", answer="answer", reward="math", hub="HuggingFaceH4/aime_2024"
    ),
    "aime25": Columns(
        prompt="problem", answer="answer", reward="math", hub="math-ai/aime25", split="test"
    ),
    "livecodebench": Columns(
        prompt="question_content",
        answer="public_test_cases",
        beside=("private_test_cases", "metadata"),
        reward="code",
        hub="livecodebench/code_generation_lite",
        split="test",
        starter="starter_code",
    ),
}


def shape(name: str) -> Columns:
    """The shape of this name. Raises InputError where there is none."""
    if name not in SHAPES:
        raise InputError(f"no columns are known by {name!r}; there are: {', '.join(SHAPES)}")
    return SHAPES[name]
