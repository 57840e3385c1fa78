"""What the ranks of `test_fsdp` do, each in a process of its own; rank 0 prints what it found.

sharded_ranks.py RANK RANKS MEETING_FILE FOLDER [CASE ...]
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "train"))

from sharded_models import make_model
from train_rows import SETTINGS, make_rows, make_trainer

from scalerl.train.batches import PassLimits
from scalerl.train.sharded import Begin, ShardedTrainer, follow, join, send
from scalerl.train.step import Trainer

ROWS = make_rows(13, seed=5)
LIMITS = PassLimits(rows=4, tokens=120)
CASES = {
    "plain": {},
    "tied": {"tied": True},
    "checkpointed": {"activation_checkpointing": True},
    "offloaded": {"offload_optimizer": True},
    "bfloat16": {"dtype": "bfloat16"},
    "experts": {"family": "experts"},
    "lora": {"lora": True},
    "gspo": {"loss": "gspo"},  # one ratio for a row: the sum that no shard may cut
}


def build(case: str, kind: type[Trainer]) -> Trainer:
    how = dict(CASES[case])
    of_model = {k: how.pop(k) for k in ("family", "tied", "dtype", "lora") if k in how}
    model = make_model(**of_model)
    return make_trainer(LIMITS, model=model, kind=kind, **how)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def lead(case: str, folder: Path) -> dict:
    """Two steps beside a trainer in one process; a checkpoint each way."""
    one = build(case, Trainer)
    many = build(case, ShardedTrainer)
    found: dict = {"norms": [], "losses": [], "tokens": []}
    for version in range(2):
        a, b = one.step(ROWS, version), many.step(ROWS, version)
        found["norms"].append([a.gradient_norm, b.gradient_norm])
        found["losses"].append([a.loss, b.loss])
        found["tokens"].append([sorted(x.logp_train.tolist()) for x in (a, b)])
    published = many.weights()
    found["names_equal"] = list(published) == list(one.weights())
    found["dtypes_equal"] = all(published[n].dtype == w.dtype for n, w in one.weights().items())
    found["weights"] = apart(one.weights(), published)
    target = folder / case
    target.mkdir()
    many.save_model(target / "model", None)
    many.save_state(target)
    found["after"] = many.step(ROWS, 2).gradient_norm
    found["weights_after"] = digest(many.weights())
    many.load_state(target)  # moments back, and with them the weights
    found["again"] = many.step(ROWS, 2).gradient_norm
    found["weights_again"] = digest(many.weights())
    alone = build(case, Trainer)
    alone.load_state(target)  # two ranks' checkpoint in one process
    found["alone"] = alone.step(ROWS, 2).gradient_norm
    (folder / f"{case}-alone").mkdir()
    one.save_state(folder / f"{case}-alone")
    one_after = one.step(ROWS, 2).gradient_norm
    many.load_state(target)
    many.load_state(folder / f"{case}-alone")  # one process's on two ranks
    found["from_one"] = [one_after, many.step(ROWS, 2).gradient_norm]
    many.close()
    return found


def apart(a, b) -> float:
    """Largest difference of any weight, as a share of the learning rate."""
    return max(float((a[n].float() - b[n].float()).abs().max()) for n in a) / SETTINGS.lr


def digest(weights) -> float:
    return float(sum(w.double().abs().sum() for w in weights.values()))


def gradients(case: str, folder: Path) -> dict[str, torch.Tensor]:
    """Every rank: its part of one accumulation, the gradients gathered."""
    from scalerl.train.batches import shares

    trainer = build(case, ShardedTrainer)
    for passed in shares(ROWS, LIMITS, dist.get_world_size())[dist.get_rank()]:
        trainer._backward(passed)
    return {n: whole(p.grad) for n, p in trainer.model.named_parameters() if p.grad is not None}


def compare(case: str, sharded: dict[str, torch.Tensor]) -> float:
    """Largest relative difference of a parameter's gradient from one process's."""
    from scalerl.train.batches import passes

    trainer = build(case, Trainer)
    for passed in passes(ROWS, LIMITS):
        trainer._backward(passed)
    alone = {n: m.grad for n, m, _ in trainer._triples() if m.grad is not None}
    assert alone.keys() == sharded.keys()
    return max(float((sharded[n] - g).norm() / g.norm()) for n, g in alone.items() if g.norm())


def main() -> None:
    rank, ranks, meeting, folder, *cases = sys.argv[1:]
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    join(int(rank), int(ranks), init=f"file://{meeting}")
    found: dict[str, dict] = {}
    for case in cases:
        sharded = gradients(case, Path(folder))
        if rank == "0":
            found[case] = {"gradient": compare(case, sharded)}
            for other in range(1, int(ranks)):
                send(other, Begin(case, ""))
            found[case] |= lead(case, Path(folder))
        else:
            follow(lambda begin: build(begin.config, ShardedTrainer))
    dist.destroy_process_group()
    if rank == "0":
        print(json.dumps(found))


if __name__ == "__main__":
    main()
