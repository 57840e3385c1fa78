"""The prompts of a run and what scores them: the one place where data and rewards meet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from scalerl.config import Config
from scalerl.data.chain import TASK, make_chain_prompts
from scalerl.data.problems import Problem, report
from scalerl.data.sources import Loaded, TaskReward, load_prompts
from scalerl.errors import InputError
from scalerl.rewards.gold_check import gold_fault
from scalerl.rewards.scorer import Check, Scorer

SHOWN = 5  # warnings of a kind; `scalerl data check` shows all


def run_prompts(config: Config, tokenizer: Any, warn: Callable[[str], None] = print) -> Loaded:
    """Training and held-out prompts: of `data.sources`, or the embedded task where there are none.

    Args:
        warn: told of every problem that does not end the run.

    Raises:
        InputError: errors in the data (unless `data.on_error = "drop"`), or no prompts.
    """
    data = config.data
    if not data.sources:
        training, heldout = make_chain_prompts(
            train=data.train_prompts,
            heldout=data.validation_prompts,
            seed=data.seed,
            encode=tokenizer.encode,
            operations=(1, data.max_operations),
        )
        return Loaded(
            training=training, heldout=heldout, tasks={TASK: TaskReward(reward="exact")}, details={}
        )
    loaded = load_prompts(
        data.sources,
        tokenizer,
        heldout_share=data.heldout_share,
        max_prompt_tokens=data.max_prompt_tokens,
        refuse=data.on_error == "refuse",
    )
    if not loaded.heldout:
        raise InputError(
            "no prompt is held out, so nothing could be evaluated: raise data.heldout_share or add "
            "a source with use = 'heldout'"
        )
    if problems := [*loaded.problems, *_unreadable(loaded)]:
        warn(report(problems, show=SHOWN))
    return loaded


def _unreadable(loaded: Loaded) -> list[Problem]:
    problems: list[Problem] = []
    for prompt in [*loaded.training, *loaded.heldout]:
        detail = loaded.details.get(prompt.id, {})
        golds = [detail["tests"]] if "tests" in detail else detail.get("golds", [prompt.answer])
        reward = loaded.tasks[prompt.task].reward
        for fault in filter(None, (gold_fault(reward, gold) for gold in golds)):
            if reward == "code":
                raise InputError(f"task {prompt.task!r}, prompt {prompt.text[:60]!r}: {fault}")
            problems.append(
                Problem(
                    file=f"task {prompt.task}, prompt {prompt.text[:60]!r}",
                    line=0,
                    level="warning",
                    kind="unreadable answer",
                    text=fault,
                )
            )
    return problems


def make_scorer(config: Config, loaded: Loaded) -> Scorer:
    """The scorer of a run, tried before anything depends on it.

    Raises:
        InputError: an unknown reward, a plug-in that cannot be imported, a scorer that grants junk.
    """
    rewards = config.rewards
    scorer = Scorer(
        {
            name: Check(reward=task.reward, threshold=task.threshold)
            for name, task in loaded.tasks.items()
        },
        loaded.details,
        thinking_open=loaded.thinking_open,
        mode=rewards.mode,
        workers=rewards.workers,
        limit_s=rewards.limit_s,
        memory_bytes=rewards.memory_mb << 20,
        allow_unsandboxed_code=rewards.allow_unsandboxed_code,
    )
    with ExitStack() as unless_ready:
        unless_ready.callback(scorer.close)
        scorer.prepare()
        scorer.try_entries(loaded.training)
        unless_ready.pop_all()
    return scorer
