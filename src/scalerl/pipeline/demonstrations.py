"""What the embedded start model is shown: worked chains, bare answers and programs of other tasks.

The answers and programs are right only in a share of the cases, so that the start model knows the
form and something of the content, and RL has something left to do.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from scalerl.config import Config
from scalerl.data.candidates import SOLUTION
from scalerl.data.chain import TASK, Teacher, supervised_pairs
from scalerl.data.sources import Loaded
from scalerl.errors import InputError
from scalerl.messages import Prompt


def demonstrations(config: Config, loaded: Loaded, count: int) -> list[tuple[str, str]]:
    """`count` pairs of prompt and completion, the same number for each task, seeded.

    Held-out prompts are never among them.

    Raises:
        InputError: a code task without solutions to show.
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
        else:
            rng = random.Random(f"{seed} {task}")
            shown = [(prompt.text, _solution(prompt, loaded)) for prompt in prompts]
            pairs += [_shown(shown, rng, config.supervised.right_share) for _ in range(share)]
    return pairs


def _solution(prompt: Prompt, loaded: Loaded) -> str:
    if loaded.tasks[prompt.task].reward != "code":
        return f"<think></think><answer>{prompt.answer}</answer>"
    program = loaded.details[prompt.id].get(SOLUTION)
    if program is None:
        raise InputError(
            f"task {prompt.task!r}: the embedded model learns code only from rows with a field "
            f"{SOLUTION!r}; set model.path to a model that writes code"
        )
    return f"<think></think>\n```python\n{program}\n```"


def _shown(shown: Sequence[tuple[str, str]], rng: random.Random, right: float) -> tuple[str, str]:
    prompt, answer = rng.choice(shown)
    return prompt, answer if rng.random() < right else rng.choice(shown)[1]
