"""Held-out evaluation during a run: asked for at a version, answered while training goes on.

    start(v) ─Evaluate→ first generator ─Evaluated→ collect → score → curve.jsonl, completions/

The compute written beside a point is what had been spent when its weights were made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scalerl.errors import RunError
from scalerl.evaluate import summarise
from scalerl.messages import Evaluated, Prompt, Scored
from scalerl.pipeline.metrics import curve_row
from scalerl.pipeline.run import Run

TEXTS = 24  # held-out completions written out as text, an evaluation


def due(run: Run) -> bool:
    return run.version % run.config.evaluation.every == 0 or run.version == run.config.steps


def start(run: Run) -> None:
    """Ask for completions of the weights published last. Waits for an earlier evaluation only."""
    run.rollouts.evaluate(run.version, run.request_heldout(run.version))
    epoch = max(1, run.rollouts.stream.epoch)  # before the first draw, the first is about to begin
    run.asked[run.version] = (run.compute_now(), epoch)


def collect(run: Run, on_row: Callable[[dict[str, Any]], None], *, wait: bool) -> None:
    """Write down the evaluations that have come in; with `wait`, the outstanding one too."""
    for done in run.rollouts.evaluations(wait=wait):
        on_row(_record(run, done))


def _record(run: Run, done: Evaluated) -> dict[str, Any]:
    if done.version != done.step:
        raise RunError(f"the evaluation of step {done.step} ran at version {done.version}")
    size = run.config.evaluation.completions
    scored: list[list[Scored | None]] = [[None] * size for _ in run.heldout]
    answers = [(run.heldout[completion.group], completion) for completion in done.completions]
    for answer in run.scoring.score_all(answers):
        scored[answer.completion.group][answer.completion.sample] = answer
    whole = [[s for s in row if s is not None] for row in scored]
    if any(len(row) != size for row in whole):
        raise RunError(f"the evaluation of step {done.step} came back incomplete")
    compute, epoch = run.asked.pop(done.step)
    run.compute.evaluation_s += done.seconds

    def point(answers: list[list[Scored]]) -> dict[str, Any]:
        return curve_row(
            summarise(answers),
            compute,
            step=done.step,
            version=done.version,
            parameters=run.trainer.parameter_count,
            epoch=epoch,
        )

    row = point(whole)
    run.directory.append("curve", row)
    for task, answers in _by_task(run.heldout, whole).items():
        run.directory.append("curve", {"task": task, **point(answers)})
    for prompt, answers in list(zip(run.heldout, whole, strict=True))[:TEXTS]:
        answer = answers[0]
        run.directory.append_completion(
            done.step,
            {
                "step": done.step,
                "prompt": prompt.text,
                "answer": prompt.answer,
                "completion": run.decode(answer.completion.token_ids),
                "outcome": answer.outcome,
                "truncated": answer.completion.finish == "length",
                "interrupted": answer.completion.interrupted,
                "tokens": len(answer.completion.token_ids),
                "pass_rate": sum(a.reward > 0 for a in answers) / size,
            },
        )
    return row


def _by_task(heldout: list[Prompt], scored: list[list[Scored]]) -> dict[str, list[list[Scored]]]:
    """Answers of each task, where there are several: each has a series of its own."""
    tasks: dict[str, list[list[Scored]]] = {}
    for prompt, answers in zip(heldout, scored, strict=True):
        tasks.setdefault(prompt.task, []).append(answers)
    return tasks if len(tasks) > 1 else {}
