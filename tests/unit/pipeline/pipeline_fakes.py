"""Groups, completions and generators without a model."""

from __future__ import annotations

from scalerl.messages import Completion, Group, Prompt, Scored


def make_prompt(name: str) -> Prompt:
    return Prompt(id=name, text=name, token_ids=(1, 2), answer="", task="fake")


def make_completion(
    group: int,
    sample: int = 0,
    *,
    tokens: int = 3,
    segments: tuple[tuple[int, int], ...] = ((0, 0),),
    finish: str = "stop",
) -> Completion:
    return Completion(
        group=group,
        sample=sample,
        token_ids=(5,) * tokens,
        logp_gen=(-1.0,) * tokens,
        mask=(1,) * tokens,
        segments=segments,
        finish=finish,  # type: ignore[arg-type]
        interrupted=False,
        entropy=1.0,
    )


def make_group(index: int, version: int, *, name: str | None = None) -> Group:
    """A group of one wrong and one right completion, sampled at its admission."""
    completions = tuple(
        Scored(
            completion=make_completion(index, sample, segments=((0, version),)),
            reward=reward,
            outcome=outcome,  # type: ignore[arg-type]
        )
        for sample, (reward, outcome) in enumerate(((-1.0, "wrong"), (1.0, "correct")))
    )
    return Group(
        index=index,
        prompt=make_prompt(name or f"p{index}"),
        admitted_version=version,
        completions=completions,
    )
