"""What the embedded start model is shown: worked chains, and bare answers of other tasks.

The bare answers are right only in a share of the cases, so that the start model knows the form and
something of the content, and RL has something left to do.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from scalerl.config import Config
from scalerl.data.chain import TASK, Teacher, supervised_pairs
from scalerl.data.sources import Loaded
from scalerl.errors import InputError
from scalerl.messages import Prompt


def demonstrations(config: Config, loaded: Loaded, count: int) -> list[tuple[str, str]]:
    """`count` pairs of prompt and completion, the same number for each task, seeded.

    Held-out prompts are never among them.

    Raises:
        InputError: a task whose answers cannot be shown as they are (code).
    """
    seed = config.supervised.seed
    tasks: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in loaded.training:
        tasks[prompt.task].append(prompt)
    share = count // len(tasks)
    pairs: list[tuple[str, str]] = []
    for task, prompts in tasks.items():
        if task == TASK:
            pairs += supervised_pairs(
                count=share,
                seed=seed,
                teacher=Teacher.make(seed),
                exclude=loaded.heldout,
                operations=(1, config.data.max_operations),
            )
        elif loaded.tasks[task].reward == "code":
            raise InputError(f"task {task!r}: the embedded model learns no code; set model.path")
        else:
            rng = random.Random(f"{seed} {task}")
            pairs += [_shown(prompts, rng, config.supervised.right_share) for _ in range(share)]
    return pairs


def _shown(prompts: Sequence[Prompt], rng: random.Random, right: float) -> tuple[str, str]:
    prompt = rng.choice(prompts)
    answer = (prompt if rng.random() < right else rng.choice(prompts)).answer
    return prompt.text, f"<think></think><answer>{answer}</answer>"
