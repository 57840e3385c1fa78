"""The training loop: take finished groups, learn from them, hand out the new weights, look.

    while version < steps:
        groups     ← rollouts (waits here, and nowhere else)
        effective  ← filters, advantages, weights        (algorithm)
        model      ← one optimiser step                  (train)
        generators ← new weights                         (completions in flight go on with them)
        logs       ← what was seen; held-out evaluation and checkpoint when due

Deviation from the paper: evaluations run on the first generator, with rollouts paused there, and
their time is kept out of the compute axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from scalerl.algorithm.effective import Effective, assemble
from scalerl.messages import Group
from scalerl.pipeline import heldout
from scalerl.pipeline.alarms import Listener
from scalerl.pipeline.metrics import step_row
from scalerl.pipeline.run import Run

Ending = Literal["done", "prompts_retired"]


def train(run: Run, listener: Listener, checkpoint: Callable[[Run], object]) -> Ending:
    """Train to the last step, or until no prompt is left.

    Raises:
        RunError: the run could not go on; everything logged so far is whole.
    """
    publish(run)
    if not run.inline:
        run.rollouts.settle()
    if run.version == 0:
        heldout.start(run)
    while run.version < run.config.steps:
        began = run.clock()
        run.rollouts.take_waits()  # what was waited for since the last step is not this one's
        groups, useless = run.rollouts.take(run.version)
        # At the end of the prompts what is left has no variance: a step that is booked and skipped.
        taken = [*groups, *useless] or run.rollouts.groups.take_useless()
        if not taken:
            break
        effective = assemble(taken, run.rules)
        seen = run.trainer.step(effective.rows, run.version) if effective.rows else None
        row = step_row(taken, effective, seen, run.rules, version=run.version)
        run.version += 1
        publish(run)
        row |= account(run, taken, effective, began=began)
        run.directory.append("steps", row)
        listener.on_step(row)
        if heldout.due(run):
            heldout.start(run)
        heldout.collect(run, listener.on_evaluation, wait=run.inline)
        if run.version % run.config.checkpoint.every == 0:
            heldout.collect(run, listener.on_evaluation, wait=True)
            checkpoint(run)
    heldout.collect(run, listener.on_evaluation, wait=True)
    return "done" if run.version == run.config.steps else "prompts_retired"


def publish(run: Run) -> None:
    """Every step's weights go out at once. Under `ppo_off_policy` the generators are idle while
    the trainer takes its k steps, so only the last of them is ever sampled from."""
    run.rollouts.publish(run.version, run.trainer.weights())


def account(run: Run, groups: list[Group], effective: Effective, *, began: float) -> dict[str, Any]:
    """Book time and tokens of the step just taken; raises LedgerError if the account is open."""
    rollouts, compute = run.rollouts, run.compute
    rollouts.ledger.use(effective.spent)
    waits = rollouts.take_waits()
    busy_s = run.clock() - began - waits.idle_s - waits.evaluation_s
    compute.trainer_busy_s += busy_s
    if not run.inline:
        compute.trainer_idle_s += waits.idle_s
    compute.tokens_trained += effective.spent.trained
    compute.prompt_tokens += sum(len(g.prompt.token_ids) for g in groups)
    passed = sum(len(r.prompt_ids) + len(r.token_ids) for r in effective.rows)
    compute.trainer_flops += 6.0 * run.trainer.parameter_count * passed
    stream = rollouts.stream
    return {
        "busy_s": busy_s,
        "waited_s": waits.idle_s,
        "groups_taken": [g.index for g in groups],
        "prompts_taken": [g.prompt.id for g in groups],
        "restarts": rollouts.restarts,
        "duplicates": rollouts.duplicates,
        "ledger": rollouts.close_ledger(),
        "epoch": stream.epoch,
        "prompts_live": stream.n_live,
        "prompts_retired": len(stream.retired),
        **run.compute_now().row(run.trainer.parameter_count),
    }
