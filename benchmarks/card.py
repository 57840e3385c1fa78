"""What one card reaches of its own floor: decoding, training and publishing weights.

    python benchmarks/card.py [--device cuda] [--shapes 0.5b 7b] [--write FILE.json]
    python benchmarks/card.py --device cpu --shapes tiny        a smoke test, in seconds

Models have random bfloat16 weights in the shapes of Qwen2.5. Floors come from the same card in the
same run: copying 1 GiB on the device, and a bfloat16 product of 8192³ (small on a CPU).

    decode     steps of all slots in the middle of their completions, as CUDA graphs and without;
               floor: bytes of weights and of keys and values up to there, over the copy's rate
    train      optimiser steps on full rows; floor: 6 · N FLOPs a token over the product's rate,
               N with the head and without the embedding; layers are left out until it fits
    publish    new weights out of the trainer's hands into the generator's parameters: through host
               memory, as between processes, and by copies on the device

`share` is floor time over measured time. Nothing of this has been run on a card yet.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from scalerl.algorithm.effective import Row
from scalerl.algorithm.losses import make_loss
from scalerl.generate.engine import Engine
from scalerl.generate.sampling import SamplingParams
from scalerl.messages import Request
from scalerl.model.device import open_device
from scalerl.pipeline.weights import HostStore, InProcessStore, pack
from scalerl.train.batches import PassLimits
from scalerl.train.step import OptimizerSettings, Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    tied: bool
    trained_layers: int  # that fit with FP32 masters, gradients and moments in 141 GB
    slots: int
    prompt: int  # tokens
    steps: int  # decode steps that are timed
    rows: int  # of an optimiser step
    tokens: int  # of a row


SHAPES = {
    "tiny": Shape(
        hidden=64, layers=2, heads=4, kv_heads=2, feed_forward=128, vocabulary=256, tied=False,
        trained_layers=2, slots=8, prompt=16, steps=8, rows=4, tokens=32,
    ),
    "0.5b": Shape(
        hidden=896, layers=24, heads=14, kv_heads=2, feed_forward=4864, vocabulary=151936,
        tied=True, trained_layers=24, slots=256, prompt=1024, steps=64, rows=16, tokens=2048,
    ),
    "7b": Shape(
        hidden=3584, layers=28, heads=28, kv_heads=4, feed_forward=18944, vocabulary=152064,
        tied=False, trained_layers=14, slots=256, prompt=1024, steps=64, rows=8, tokens=2048,
    ),
}  # fmt: skip


def make_model(shape: Shape, device: torch.device, layers: int) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=8192,
        tie_word_embeddings=shape.tied,
    )
    config.dtype = torch.bfloat16
    with device:
        return LlamaForCausalLM(config).to(torch.bfloat16)


def timed(work: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Median seconds of one call."""
    seconds = []
    for _ in range(times):
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_gib(device: torch.device) -> float:
    """Peak memory since `fresh`; on a CPU that of the process since its start."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def fresh(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def floors(device: torch.device) -> dict[str, float]:
    """Bytes a second that a copy reads and writes, and FLOPs a second of a product."""
    big = device.type == "cuda"
    source = torch.ones(2**28 if big else 2**22, device=device)
    target = torch.empty_like(source)
    size = 8192 if big else 512
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    for _ in range(3):
        target.copy_(source)
        a @ b
    copy = timed(lambda: target.copy_(source), device, times=20)
    product = timed(lambda: a @ b, device, times=20)
    return {
        "bytes_per_s": 2 * source.numel() * source.element_size() / copy,
        "flops_per_s": 2 * size**3 / product,
    }


def decode(shape: Shape, device: torch.device, rate: float, *, static: bool) -> dict[str, float]:
    fresh(device)
    model = make_model(shape, device, shape.layers)
    warm_up = 4
    engine = Engine(
        model,
        slots=shape.slots,
        max_length=shape.prompt + 2 * (warm_up + shape.steps),
        params=SamplingParams(max_new_tokens=2 * (warm_up + shape.steps)),
        interruption=None,
        end_ids=(),
        static=static,
    )
    prompt = tuple(i % shape.vocabulary for i in range(shape.prompt))
    engine.submit(
        [
            Request(group=0, sample=i, prompt_ids=prompt, seed=i, interrupt_at=None)
            for i in range(shape.slots)
        ]
    )
    prefill = timed(engine.step, device)
    for _ in range(warm_up):
        engine.step()
    seconds = [timed(engine.step, device) for _ in range(shape.steps)]  # captures are outliers
    step = statistics.median(seconds)
    head = shape.hidden // shape.heads
    kv = 2 * 2 * shape.layers * shape.kv_heads * head  # bytes of a token
    seen = shape.slots * (shape.prompt + warm_up + shape.steps // 2)
    embedding = 0 if shape.tied else shape.vocabulary * shape.hidden
    weights = 2 * (sum(p.numel() for p in model.parameters()) - embedding)
    floor = (weights + kv * seen) / rate
    return {
        "tokens_per_s": shape.slots / step,
        "step_ms": 1e3 * step,
        "slowest_step_ms": 1e3 * max(seconds),
        "floor_ms": 1e3 * floor,
        "share": floor / step,
        "first_step_s": prefill,
        "peak_gib": peak_gib(device),
    }


def train(shape: Shape, device: torch.device, rate: float) -> dict[str, float]:
    fresh(device)
    trainer = make_trainer(shape, device, shape.trained_layers)
    half = shape.tokens // 2
    ids = tuple(i % shape.vocabulary for i in range(half))
    row = Row(
        group=0,
        sample=0,
        prompt_ids=ids,
        token_ids=ids,
        logp_gen=(-10.0,) * half,
        mask=(1,) * half,
        segments=((0, 0),),
        advantage=1.0,
        weight=1 / (shape.rows * half),
    )
    rows = [row] * shape.rows
    trainer.step(rows, 0)
    step = timed(lambda: trainer.step(rows, 1), device, times=3)
    embedding = shape.vocabulary * shape.hidden
    parameters = trainer.parameter_count
    multiplied = parameters if shape.tied else parameters - embedding
    tokens = shape.rows * shape.tokens
    floor = 6 * multiplied * tokens / rate
    return {
        "layers": shape.trained_layers,
        "parameters": parameters,
        "tokens_per_s": tokens / step,
        "step_s": step,
        "floor_s": floor,
        "share": floor / step,
        "peak_gib": peak_gib(device),
    }


def make_trainer(shape: Shape, device: torch.device, layers: int) -> Trainer:
    settings = OptimizerSettings(
        lr=1e-6,
        warmup_steps=0,
        betas=(0.9, 0.95),
        eps=1e-15,
        weight_decay=0.0,
        clip_norm=1.0,
        skip_budget=0,
    )
    return Trainer(
        make_model(shape, device, layers),
        make_loss("cispo", ratio_max=5.0),
        settings,
        temperature=1.0,
        fp32_head=True,
        limits=PassLimits(rows=2),
        activation_checkpointing=True,
    )


def publish(shape: Shape, device: torch.device) -> dict[str, float]:
    fresh(device)
    model = make_model(shape, device, shape.layers)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    size = sum(w.numel() * w.element_size() for w in weights.values())
    found = {"gib": size / 2**30}
    for name in ("host", "device"):
        if name == "host":
            store = HostStore([memoryview(bytearray(len(pack(weights)) + 8))], readers=0)
        else:
            store = InProcessStore(1, readers=0)

        def over(store: HostStore | InProcessStore = store) -> None:
            read = store.read(store.write(0, weights))
            with torch.no_grad():
                for key, parameter in model.named_parameters():
                    parameter.copy_(read[key])

        found[f"{name}_s"] = timed(over, device)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["0.5b", "7b"])
    parser.add_argument("--write", type=Path, metavar="FILE.json")
    arguments = parser.parse_args()
    device = open_device(arguments.device)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    rates = floors(device)
    found: dict[str, object] = {"card": card, "torch": torch.__version__, "floors": rates}
    print(json.dumps(found), flush=True)
    for name in arguments.shapes:
        shape = SHAPES[name]
        parts = {
            "decode_graphs": lambda s=shape: decode(s, device, rates["bytes_per_s"], static=True),
            "decode_eager": lambda s=shape: decode(s, device, rates["bytes_per_s"], static=False),
            "train": lambda s=shape: train(s, device, rates["flops_per_s"]),
            "publish": lambda s=shape: publish(s, device),
        }
        for part, work in parts.items():
            found[f"{name} {part}"] = seen = work()
            print(f"{name} {part}: {json.dumps(seen)}", flush=True)
    if arguments.write:
        arguments.write.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
