"""What `test_pretended_card` has done on the card; prints what it found.

card_road.py FOLDER
"""

import json
import sys
from pathlib import Path

from pretended_card import CARD, Card, Mixed, OnCard  # first: it changes torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "generate"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "train"))

import torch
from sharded_models import make_model
from test_engine import CLOSE, complete, finish, make_engine, make_requests, sharp_model
from train_rows import make_rows, make_trainer
from training_runs import SETTINGS, Watch, make_start, rows

from scalerl.config import load_config
from scalerl.data.chain import Teacher, supervised_pairs
from scalerl.generate.slots import Interruption
from scalerl.generate.thinking import ending_in_ids
from scalerl.pipeline import devices, generator
from scalerl.pipeline.session import run_new, run_on
from scalerl.pipeline.standalone import evaluate_model
from scalerl.pipeline.supervised import supervise_file
from scalerl.train.batches import PassLimits

RULE = Interruption(
    phrase_ids=(9, 8, CLOSE), end_thinking=ending_in_ids((CLOSE,)), solution_tokens=5
)
LIMITS = PassLimits(rows=4, tokens=120)
ROWS = make_rows(7, seed=5)


def mixing() -> dict:
    """That the card notices what it is there to notice."""
    caught = []
    here = torch.ones(3)
    there = torch.ones(3, device=CARD)
    ways = {
        "add": lambda: there + here,
        "product": lambda: torch.outer(here, there),
        "gather": lambda: there.gather(0, torch.tensor([0])),
        "index of the card": lambda: here[torch.tensor([0], device=CARD)],
        "array": lambda: there.numpy(),
    }
    for name, way in ways.items():
        try:
            way()
        except Mixed:
            caught.append(name)
    fine = [there + torch.tensor(1.0), there[torch.tensor([0])], there.cpu() + here, there.to(CARD)]
    kinds = [type(x) is OnCard for x in fine]
    return {"caught": caught, "all": list(ways), "kinds": kinds, "sum": float(there.sum())}


def engine() -> dict:
    """Completions on both devices, and weights that come from the other one in mid-flight."""
    found = {}
    requests = make_requests(6, 2, budgets=(None, 2, 6))
    for experts in (False, True):
        model = make_model("experts") if experts else sharp_model(kv_heads=2)
        here = complete(make_engine(model, interruption=RULE), requests)
        with Card():
            there = complete(make_engine(model.to(CARD), interruption=RULE), requests)
            static = complete(make_engine(model, interruption=RULE, static=True), requests)
            on_way = make_engine(model, interruption=RULE)
            on_way.submit(requests)
            done = [c for _ in range(4) for c in on_way.step()]
            host = {n: p.detach().cpu() for n, p in model.named_parameters()}
            on_way.load_weights(host, 1, recompute_kv=True)
            done += finish(on_way)
        found["experts" if experts else "dense"] = {
            "same_tokens": all(there[key].token_ids == c.token_ids for key, c in here.items()),
            "same_static": all(static[key].token_ids == c.token_ids for key, c in here.items()),
            "apart": max(
                abs(a - b)
                for key, c in here.items()
                for a, b in zip(c.logp_gen, there[key].logp_gen, strict=False)
            ),
            "finished": len(done) == len(requests),
        }
    return found


def trainer(folder: Path) -> dict:
    """A step on both devices; a checkpoint of each goes on on the other."""
    found = {}
    for case, how in {
        "plain": {},
        "bfloat16": {"dtype": "bfloat16"},
        "experts": {"family": "experts"},
        "lora": {"lora": True},
        "offloaded": {"offload_optimizer": True},
        "checkpointed": {"activation_checkpointing": True},
    }.items():
        how = dict(how)
        of_model = {k: how.pop(k) for k in ("family", "dtype", "lora") if k in how}
        here = make_trainer(LIMITS, model=make_model(**of_model), **how)
        seen = here.step(ROWS, 0)
        (folder / f"{case}-here").mkdir()
        (folder / f"{case}-there").mkdir()
        here.save_state(folder / f"{case}-here")
        with Card():
            there = make_trainer(LIMITS, model=make_model(**of_model).to(CARD), **how)
            seen_there = there.step(ROWS, 0)
            there.save_state(folder / f"{case}-there")
            there.load_state(folder / f"{case}-here")
            crossed = there.step(ROWS, 1)
            places = sorted({str(p.device) for p in there.model.parameters()})
        after = here.step(ROWS, 1)
        here.load_state(folder / f"{case}-there")
        found[case] = {
            "norms": [seen.gradient_norm, seen_there.gradient_norm],
            "losses": [seen.loss, seen_there.loss],
            "crossed": [after.gradient_norm, crossed.gradient_norm],
            "places": places,
        }
    return found


def road(folder: Path) -> dict:
    """`train`, `train --resume`, `eval` and `sft` with no setting changed but the device."""
    opened: list[str] = []

    def open_device(name: str, card: int = 0) -> torch.device:
        opened.append(name)
        return CARD

    devices.open_device = generator.open_device = open_device
    start = make_start(folder / "start")
    file = folder / "run.toml"
    mode = '[execution]\nmode = "interleaved"\ndevice = "cuda"'
    file.write_text(SETTINGS.replace("[execution]", mode))
    words = ["--model.path", str(start), "--evaluation.every", "2", "--evaluation.completions=1"]
    words += ["--data.validation_prompts=4", "--batch.prompts=2"]
    run = folder / "run"
    with Card():
        run_new(load_config([file], overrides=[*words, "--steps=2"]), run, Watch(), starts=folder)
        longer = load_config([file], overrides=[*words, "--steps=3"])
        run_on(run, Watch(), starts=folder, config=longer)
        summary = evaluate_model(longer, run / "checkpoints/step-000003/model")
        pairs = supervised_pairs(
            count=30, seed=0, teacher=Teacher.make(0), exclude=(), operations=(1, 1)
        )
        traces = folder / "traces.jsonl"
        traces.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in pairs))
        how = [f"--sft.data={traces}", "--sft.steps=1", "--sft.heldout_share=0.4"]
        sft = load_config([file], overrides=[*words, *how, "--sft.tokens_per_pass=64"])
        model = supervise_file(sft, folder / "sft", start, say=lambda text: None)
    return {
        "steps": [row["step"] for row in rows(run, "steps")],
        "curve": [row["step"] for row in rows(run, "curve")],
        "mismatch": [row.get("equal_weights_mismatch_max") for row in rows(run, "steps")],
        "n_prompts": summary.n_prompts,
        "sft": (model / "model.safetensors").is_file(),
        "opened": opened,
    }


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with Card():
        found = {"mixing": mixing()}
    found |= {"engine": engine(), "trainer": trainer(folder), "road": road(folder)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
