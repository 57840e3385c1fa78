"""Math answers measured: verdicts against math-verify alone, hostile text, speed, delay of a step.

    python benchmarks/math_answers.py      writes baselines/math_answers.json

Verdicts: the pairs of `math_pairs`, each asked both ways of the peer (math-verify with the answer
in a box and the gold between dollars) and of `math_outcome`. Speed: integer answers in whole
completions on one core. Delay: a training-like loop of matrix products, one thread, with and
without 512 mixed answers being checked beside it, with the load average of the moment.
"""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from math_pairs import pairs

from scalerl.rewards.extraction import final_answer
from scalerl.rewards.math import PRELOAD, math_job, math_outcome, quick_outcome
from scalerl.rewards.workers import Workers

HOSTILE = 10_000
LIMIT_S = 2.0
PIECES = r"""
\frac{ \sqrt{ \sum_{k=1}^ \int_0^1 \lim_{x\to0} \begin{pmatrix} \end{pmatrix} \\ & { } ( ) [ ] \{
\} ^ _ ^{9^{9^{9}}} 10^{10^{10}} ! !! % \% , ; = < > \le \cup \pm | $ \text{ \boxed{ 1 2 3.5
1e999999999 0.\overline{3} x y \pi e i \infty \log_ \sin^{-1} \binom{ é \ufffd \x00 __
__import__('os') lambda: \left( \right. \ldots \in \mathbb{R} cm degrees million
"""


def main() -> None:
    figures: dict[str, Any] = {"verdicts": verdicts(), "hostile": hostile(), "speed": speed()}
    figures["delay"] = delay()
    path = Path(__file__).parent / "baselines" / "math_answers.json"
    path.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print(json.dumps(figures, indent=2))


def verdicts() -> dict[str, Any]:
    from math_verify import parse, verify

    def peer(gold: str, answer: str) -> bool:
        return bool(verify(parse(f"${gold}$"), parse(rf"\boxed{{{answer}}}")))

    with Workers(limit_s=LIMIT_S, preload=PRELOAD) as workers:

        def ours(gold: str, answer: str) -> bool:
            return math_outcome(rf"So \boxed{{{answer}}}.", gold, workers) == "correct"

        return {
            "pairs": len(pairs()),
            "equal": sum(equal for _, _, equal, _ in pairs()),
            "scalerl": _faults(ours),
            "math_verify_alone": _faults(peer),
        }


def _faults(check: Callable[[str, str], bool]) -> dict[str, Any]:
    faults: Counter[str] = Counter()
    began = time.perf_counter()
    for gold, answer, equal, _ in pairs():
        accepted = check(gold, answer)
        faults["false_accepts"] += accepted and not equal
        faults["false_rejects"] += equal and not accepted
    right = sum(equal for _, _, equal, _ in pairs())
    return {
        "false_accepts": faults["false_accepts"],
        "false_rejects": faults["false_rejects"],
        "false_reject_rate": round(faults["false_rejects"] / right, 4),
        "milliseconds_a_pair": round(1000 * (time.perf_counter() - began) / len(pairs()), 2),
    }


def hostile_texts(count: int, seed: int = 0) -> list[str]:
    """Fuzzed LaTeX, towers of powers, 100 kB of brackets."""
    rng = random.Random(seed)
    texts = []
    for index in range(count):
        match index % 20:
            case 0:
                texts.append("(" * rng.randrange(1, 100_000))
            case 1:
                texts.append("^".join(["9"] * rng.randrange(2, 60)))
            case 2:
                texts.append("".join(chr(rng.randrange(0x2FF)) for _ in range(300)))
            case 3:
                texts.append(r"\frac{1}{" * rng.randrange(1, 2000) + "}" * rng.randrange(2000))
            case _:
                texts.append(" ".join(rng.choices(PIECES.split(), k=rng.randrange(1, 60))))
    return texts


def hostile() -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    began = time.perf_counter()
    with Workers(limit_s=LIMIT_S, memory_bytes=1 << 30, preload=PRELOAD) as workers:
        for text in hostile_texts(HOSTILE):
            start = time.perf_counter()
            outcomes[math_outcome(rf"\boxed{{{text}}}", [text[::-1], "7"], workers)] += 1
            slowest = max(slowest, time.perf_counter() - start)
        killed, crashed = workers.killed, workers.crashed
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {
        "texts": HOSTILE,
        "outcomes": dict(sorted(outcomes.items())),
        "slowest_s": round(slowest, 2),
        "limit_s": LIMIT_S,
        "workers_killed": killed,
        "workers_crashed": crashed,
        "total_s": round(time.perf_counter() - began, 1),
        "largest_worker_mb": round(children / 1024),
        "this_process_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def speed() -> dict[str, Any]:
    texts = [
        (f"<think>{'step by step ' * 20}</think>So the answer is \\boxed{{{n}}}.", str(n + n % 2))
        for n in range(20_000)
    ]
    began = time.perf_counter()
    right = sum(quick_outcome(final_answer(text), [gold]) == "correct" for text, gold in texts)
    assert right == 10_000
    return {"integer_answers_a_second": round(len(texts) / (time.perf_counter() - began))}


def delay() -> dict[str, Any]:
    """A step alone and with 512 answers checked beside it, in turn, on one thread.

    Wall time holds whatever else the machine does; CPU time of this thread is what the checks cost
    the trainer itself. Both are medians.
    """
    matrix = np.random.default_rng(0).normal(size=(700, 700)).astype(np.float32)

    def step(products: int = 400) -> None:
        for _ in range(products):
            matrix @ matrix

    table = [(gold, answer) for gold, answer, _, _ in pairs()]
    mixed = random.Random(0).choices(table, k=512)
    alone, beside, checking, own, own_beside = [], [], [], [], []
    with Workers(limit_s=LIMIT_S, preload=PRELOAD) as workers:
        workers.check(math_job("x", ["y"]))
        for _ in range(7):
            began, cpu = time.perf_counter(), time.thread_time()
            step()
            alone.append(time.perf_counter() - began)
            own.append(time.thread_time() - cpu)
            began, cpu = time.perf_counter(), time.thread_time()
            asked = [
                workers.submit(math_job(answer, [gold]))
                for gold, answer in mixed
                if quick_outcome(answer, [gold]) is None
            ]
            step()
            beside.append(time.perf_counter() - began)
            own_beside.append(time.thread_time() - cpu)
            for future in asked:
                future.result()
            checking.append(time.perf_counter() - began)
    return {
        "answers": 512,
        "of_these_to_a_worker": len(asked),
        "step_alone_s": round(median(alone), 3),
        "step_with_checks_s": round(median(beside), 3),
        "delay": round(median(beside) / median(alone) - 1, 3),
        "cpu_delay": round(median(own_beside) / median(own) - 1, 3),
        "until_all_checked_s": round(median(checking), 2),
        "threads": 1,
        "load_average": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
    }


if __name__ == "__main__":
    main()
