"""Peak memory and time of log-probs, entropy and their backward: chunked against plain.

Each way runs in a process of its own; extra memory is the peak resident size after the backward
minus the resident size before the forward, operands in place. Both need the gradients of hidden
states and weight, which are counted. Blocks above 1 MiB are mapped one by one, so that what is
freed leaves the resident size; `retained` is measured with glibc's own habit instead.

    python benchmarks/head_memory.py            prints one JSON object
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

WAYS = ("plain", "chunked")


def measure(way: str, tokens: int, vocabulary: int, hidden: int) -> dict[str, float]:
    import torch

    from scalerl.model.logprobs import Head, chosen_logprobs, entropy_of, log_softmax_head

    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    h = torch.randn(tokens, hidden, generator=rng).requires_grad_()
    w = (torch.randn(vocabulary, hidden, generator=rng) / hidden**0.5).requires_grad_()
    ids = torch.randint(vocabulary, (tokens,), generator=rng)
    advantage = torch.randn(tokens, generator=rng)

    def run(h, ids, advantage):
        head = Head(weight_Vd=w, bias_V=None, softcap=None, scale=1.0)
        if way == "chunked":
            logp, entropy = chosen_logprobs(h, ids, head)
        else:
            full = log_softmax_head(h, head)
            logp, entropy = full.gather(-1, ids[:, None]).squeeze(-1), entropy_of(full.detach())
        (logp * advantage).sum().backward()
        return logp.detach(), entropy

    run(h[:8], ids[:8], advantage[:8])  # what the libraries allocate once
    h.grad = w.grad = None
    before = resident()
    started = time.perf_counter()
    logp, entropy = run(h, ids, advantage)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    torch.save([logp, entropy, h.grad, w.grad], f"{sys.argv[-1]}/{way}.pt")
    return {"extra_mib": (peak - before) / 2**20, "seconds": seconds}


def resident() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


def compare(folder: str) -> dict[str, float]:
    import torch

    plain, chunked = (torch.load(f"{folder}/{way}.pt", weights_only=True) for way in WAYS)
    names = ("logp", "entropy", "gradient_hidden", "gradient_weight")
    return {
        f"{name}_difference": float((a - b).abs().max() / a.abs().max())
        for name, a, b in zip(names, plain, chunked, strict=True)
    }


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("folder", nargs="?")
    args = parser.parse_args()
    sizes = (args.tokens, args.vocabulary, args.hidden)
    if args.way:
        print(json.dumps(measure(args.way, *sizes)))
        return
    with tempfile.TemporaryDirectory() as folder:
        options = [
            f"--{k}={v}" for k, v in zip(("tokens", "vocabulary", "hidden"), sizes, strict=True)
        ]
        found = {
            (way, mapped): json.loads(
                subprocess.check_output(
                    [sys.executable, __file__, *options, f"--way={way}", folder],
                    text=True,
                    env=os.environ | ({"MALLOC_MMAP_THRESHOLD_": "1048576"} if mapped else {}),
                )
            )
            for way in WAYS
            for mapped in (False, True)
        }
        differences = compare(folder)
    tokens, vocabulary, hidden = sizes

    def ratio(key: str) -> float:
        return found["chunked", True][key] / found["plain", True][key]

    print(
        json.dumps(
            {
                "tokens": tokens,
                "vocabulary": vocabulary,
                "hidden": hidden,
                "threads": 1,
                "gradients_mib": 4 * hidden * (tokens + vocabulary) / 2**20,
                **{way: found[way, True] for way in WAYS},
                "retained": {way: found[way, False] for way in WAYS},
                "extra_ratio": ratio("extra_mib"),
                "time_ratio": ratio("seconds"),
                **differences,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
