"""Useful tokens a second: the slot engine against HF ``generate`` on the same weights and prompts.

    python benchmarks/generate_throughput.py [--model DIR] [--pairs 7] [--write FILE.json]

Both sides complete the same rows at temperature 1, in one process with one thread, alternating; the
engine runs with its log-probs, entropies and per-request seeds, ``generate`` with its dynamic cache
and nothing recorded, in batches of as many rows as the engine has slots. A useful token is one up
to and including the end of text. Figures are medians over the pairs, and of the pairs' ratios.
Without ``--model`` the default start model is made first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from scalerl.config import load_config
from scalerl.data.chain import make_chain_prompts
from scalerl.generate.engine import Engine
from scalerl.generate.sampling import SamplingParams, request_seed
from scalerl.messages import Request
from scalerl.model.load import load_model, load_tokenizer
from scalerl.pipeline.start import make_start

SAMPLES = 16  # completions a prompt
NEW_TOKENS = 48


def start_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The default start model, as a run makes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_start(load_config(), Path(folder), lambda step, loss: None)
        return load_model(path).eval(), load_tokenizer(path)


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().split("\n")
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")


def run_engine(model: PreTrainedModel, requests: list[Request], slots: int, end: int) -> float:
    engine = Engine(
        model,
        slots=slots,
        max_length=max(len(r.prompt_ids) for r in requests) + NEW_TOKENS,
        params=SamplingParams(max_new_tokens=NEW_TOKENS),
        interruption=None,
        end_ids=[end],
    )
    began = time.process_time()
    engine.submit(requests)
    useful = 0
    while engine.has_work:
        useful += sum(len(c.token_ids) for c in engine.step())
    return useful / (time.process_time() - began)


def run_generate(
    model: PreTrainedModel, requests: list[Request], rows: int, end: int, pad: int
) -> float:
    began = time.process_time()
    useful = 0
    for start in range(0, len(requests), rows):
        prompts = [r.prompt_ids for r in requests[start : start + rows]]
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
        out = model.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=(ids != pad).long(),
            max_new_tokens=NEW_TOKENS,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=end,
            pad_token_id=pad,
        )
        ended = (out[:, width:] == end).int().cumsum(1)
        useful += int(((ended - (out[:, width:] == end).int()) == 0).sum())
    return useful / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="HF folder; default: made on the spot")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--slots", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--write", type=Path, help="JSON file for the figures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.model:
        model, tokenizer = load_model(args.model), load_tokenizer(args.model)
    else:
        model, tokenizer = start_model()
    end, pad = int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)  # type: ignore[arg-type]
    results = {}
    for slots in args.slots:
        prompts, _ = make_chain_prompts(
            train=12 * slots // SAMPLES,
            heldout=0,
            seed=0,
            encode=lambda text: tokenizer(text)["input_ids"],  # type: ignore[arg-type]
        )
        requests = [
            Request(
                group=group,
                sample=sample,
                prompt_ids=prompt.token_ids,
                seed=request_seed(0, "benchmark", 0, prompt.id, sample),
            )
            for group, prompt in enumerate(prompts)
            for sample in range(SAMPLES)
        ]
        run_engine(model, requests[: 2 * slots], slots, end)
        run_generate(model, requests[:slots], slots, end, pad)
        ours, theirs = [], []
        for _ in range(args.pairs):
            ours.append(run_engine(model, requests, slots, end))
            theirs.append(run_generate(model, requests, slots, end, pad))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        results[str(slots)] = {
            "engine_tokens_per_s": round(statistics.median(ours)),
            "generate_tokens_per_s": round(statistics.median(theirs)),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_low": round(min(ratios), 3),
            "ratio_high": round(max(ratios), 3),
            "completions": len(requests),
        }
        print(slots, results[str(slots)], flush=True)
    report = {
        "what": "useful tokens a CPU second, engine against HF generate with a dynamic cache",
        "parameters": sum(p.numel() for p in model.parameters()),
        "pairs": args.pairs,
        "threads": torch.get_num_threads(),
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
        "slots": results,
    }
    if args.write:
        args.write.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
