"""Random rows and a small trainer, for tests of what the trainer does with them."""

import random

from scalerl.algorithm.effective import Row
from scalerl.algorithm.losses import make_loss
from scalerl.model.tiny import tiny_model
from scalerl.train.batches import PassLimits, passes
from scalerl.train.step import OptimizerSettings, Trainer

SETTINGS = OptimizerSettings(
    lr=1e-3,
    warmup_steps=0,
    betas=(0.9, 0.95),
    eps=1e-15,
    weight_decay=0.01,
    clip_norm=1.0,
    skip_budget=0,
)


def make_rows(count, *, seed, lengths=None, vocabulary=32):
    rng = random.Random(seed)
    rows = []
    for group in range(count):
        length = lengths[group] if lengths else rng.randrange(1, 40)
        ids = [[rng.randrange(2, vocabulary) for _ in range(n)] for n in (2, length)]
        mask = [int(rng.random() < 0.9) for _ in range(length)]
        mask[-1] = 1
        rows.append(
            Row(
                group=group,
                sample=0,
                prompt_ids=tuple(ids[0]),
                token_ids=tuple(ids[1]),
                logp_gen=tuple(-rng.uniform(2, 5) * m for m in mask),
                mask=tuple(mask),
                segments=((0, 0),),
                advantage=rng.choice([-1.0, 1.0]) * rng.random(),
                weight=1 / (count * sum(mask)),
            )
        )
    return rows


def make_trainer(limits, *, model=None, kind=Trainer, settings=SETTINGS, loss="cispo", **how):
    """`loss`: a name, or a loss itself."""
    return kind(
        model or tiny_model(seed=0),
        make_loss(loss) if isinstance(loss, str) else loss,
        settings,
        temperature=1.0,
        fp32_head=True,
        limits=limits,
        **how,
    )


def gradient_of(rows, limits: PassLimits, **how):
    """Gradient of the whole step by parameter name."""
    return gradient_over(passes(rows, limits), limits, **how)


def gradient_over(todo, limits: PassLimits, **how):
    """Gradient of passes, whosever they are, by parameter name."""
    trainer = make_trainer(limits, **how)
    for passed in todo:
        trainer._backward(passed)
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters()}
