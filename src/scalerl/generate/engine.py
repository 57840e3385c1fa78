"""Continuous batching on a HF causal LM: slots that are refilled the moment they are free.

    submit → queue → slots ⟶ step: fill, one forward, sample, record ⟶ completions
                                 ↑
    load_weights ────────────────┘  completions in flight go on with the new weights

The forward is the model's own, over a ragged batch (see ``attention``); the log-probs come from the
same head function as the trainer's (``scalerl.model.logprobs``). Seeds belong to requests: a sample
depends on its seed, its prompt and the weights, not on its neighbours or on the order of arrival.
With FP32 weights on a CPU and one thread that, and the equality with the trainer, hold to the last
bit (``scalerl.model.attention`` says why); elsewhere to within rounding, so that two sums which
differ by 1e-7 can draw differently where the random number falls between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from transformers import PreTrainedModel

from scalerl.errors import InputError, RunError
from scalerl.generate import attention
from scalerl.generate.attention import Chunk, Copies, KVCache, StepLayout
from scalerl.generate.graphs import Decoded, StaticDecode, capturable
from scalerl.generate.sampling import SamplingParams, draw, uniforms
from scalerl.generate.slots import Finished, Interruption, Slots
from scalerl.messages import Completion, Request
from scalerl.model.attention import ROWS, attention_of
from scalerl.model.logprobs import body_of, entropy_of, head_of, log_softmax_head


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompts:
    """The prompt bodies that a step writes to the cache."""

    chunks: tuple[Chunk, ...] = ()
    copies: Copies | None = None
    bodies: Sequence[tuple[int, ...]] = ()  # token ids, in the order of the chunks


class Engine:
    """Samples completions of requests with ``model``.

    The model is borrowed: its attention is replaced during a step and put back after it, so several
    engines (rollouts, evaluation) and a trainer can use one model, as long as nobody changes the
    weights of an engine in use but its own ``load_weights``.

    Args:
        slots: completions in flight at once.
        max_length: positions of a slot: the longest prompt and its completion.
        end_ids: a sampled token of these ends a completion; it belongs to it, with mask 1.
        version: of the weights that the model holds now.
        fp32_head: as the trainer's.
        static: decode at a few fixed sizes, which a card captures as graphs; prompts then have a
            forward of their own.

    Raises:
        InputError: a model that the slot attention does not support.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int,
        max_length: int,
        params: SamplingParams,
        interruption: Interruption | None,
        end_ids: Sequence[int],
        version: int = 0,
        fp32_head: bool = True,
        static: bool = False,
    ) -> None:
        attention.check_supported(model, max_length)
        attention.register()
        self.model = model.eval()
        self.params = params
        self.tokens_generated = 0  # since the start, forced and unfinished ones included
        self._fp32_head = fp32_head
        self._max_length = max_length
        self._queue: deque[Request] = deque()
        self._requests: list[Request | None] = [None] * slots  # None: free
        self._started = [0] * slots  # step at which a slot's completion began
        self._used = 0  # slots 0 … used−1 are active, but for the free ones among them
        self._free: list[int] = []
        self._steps = 0
        self._versions = [(0, version)]  # (first step, version), ascending
        self._cache = KVCache(slots, max_length)
        self._slots = Slots(
            slots,
            params=params,
            interruption=interruption,
            end_ids=end_ids,
            vocabulary=model.config.get_text_config().vocab_size,
            device=model.device,
        )
        self._static: StaticDecode | None = None
        if static and capturable(model):
            self._static = StaticDecode(
                self._static_decode, slots=slots, length=self._cache.length, device=model.device
            )

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        return self._versions[-1][1]

    @property
    def active(self) -> int:
        """Completions in flight."""
        return self._used - len(self._free)

    @property
    def queued(self) -> int:
        """Requests that wait for a slot."""
        return len(self._queue)

    @property
    def has_work(self) -> bool:
        return self.active > 0 or self.queued > 0

    @property
    def tokens_in_flight(self) -> int:
        """Tokens of completions not yet finished; the other generated ones have been returned."""
        return sum(
            self._steps - self._started[slot]
            for slot, r in enumerate(self._requests)
            if r is not None
        )

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, in order. All or, on an InputError, none."""
        for request in requests:
            total = len(request.prompt_ids) + self.params.max_new_tokens
            if not request.prompt_ids:
                raise InputError(f"group {request.group}: the prompt is empty")
            if total > self._max_length:
                raise InputError(
                    f"group {request.group}: prompt of {len(request.prompt_ids)} tokens and "
                    f"{self.params.max_new_tokens} new ones exceed the length of {self._max_length}"
                )
        self._queue.extend(requests)

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """One token for every slot, after filling the free ones. Returns what has finished."""
        prompts = self._fill()
        n = self._used
        if not n:
            return []
        if self._static is None:
            rows = max(n, min(ROWS, len(self._requests)))  # idle slots make up the number
            seen = self._decode(n, self._forward(rows, self._longest(), prompts))
        else:
            self._prefill(prompts)
            seen = self._static(n, self._longest())
        if not bool(torch.isfinite(seen.logp_n).all()):
            raise RunError(f"weights of version {self.version} give log-probs that are not finite")
        finished = self._slots.advance(seen.sampled_n, seen.logp_n, seen.entropy_n)
        self._steps += 1
        self.tokens_generated += n
        return [self._release(end) for end in finished]

    def load_weights(
        self, tensors: Mapping[str, Tensor], version: int, *, recompute_kv: bool = False
    ) -> None:
        """Copy weights into the model; completions in flight go on with them.

        Keys and values computed so far stay as they are (PipelineRL), so a completion's later
        log-probs are of the new weights over an old cache; ``recompute_kv`` computes it anew.

        Raises:
            ValueError: names or shapes other than the model's parameters.
        """
        own = dict(self.model.named_parameters())
        aliases = dict(self.model.named_parameters(remove_duplicate=False))
        if missing := own.keys() - tensors.keys():
            raise ValueError(f"weights of version {version} lack {sorted(missing)}")
        if unknown := tensors.keys() - aliases.keys():
            raise ValueError(f"weights of version {version} have unknown {sorted(unknown)}")
        for name, parameter in own.items():
            if parameter.shape != tensors[name].shape:
                raise ValueError(f"weights of version {version}: {name} has another shape")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(tensors[name])
        if self._versions[-1][0] == self._steps:
            self._versions.pop()
        self._versions.append((self._steps, version))
        oldest = min((self._started[s] for s, _ in self._live()), default=self._steps)
        while len(self._versions) > 1 and self._versions[1][0] <= oldest:
            self._versions.pop(0)
        if recompute_kv:
            self._recompute()

    # One step

    def _fill(self) -> _Prompts:
        """Give queued requests the free slots; close the gaps that stay. Returns the prompt bodies
        (all tokens but the last, which is the first to be fed) to compute and to copy."""
        gaps = sorted(self._free)
        taken = [*gaps, *range(self._used, len(self._requests))][: len(self._queue)]
        requests = [self._queue.popleft() for _ in taken]
        self._free = gaps[len(taken) :]
        for slot, request in zip(taken, requests, strict=True):
            self._requests[slot], self._started[slot] = request, self._steps
        if taken:
            self._used = max(self._used, taken[-1] + 1)
            self._slots.admit(taken, requests)
        self._close_gaps()
        computed: list[tuple[tuple[int, ...], int]] = []
        copied: list[tuple[int, int]] = []
        holders = self._holders() if taken else {}
        for slot, request in zip(taken, requests, strict=True):
            if len(request.prompt_ids) == 1:
                continue
            holder = holders.setdefault(request.group, slot)
            if holder == slot or self._prompt_of(holder) != request.prompt_ids:
                computed.append((request.prompt_ids[:-1], slot))
            else:
                copied.append((holder, slot))
        chunks, bodies = self._chunks(computed)
        return _Prompts(chunks=chunks, copies=self._copies(copied), bodies=bodies)

    def _holders(self) -> dict[int, int]:
        """For each group in flight, a slot whose prompt went through the weights of now."""
        since = self._versions[-1][0]
        return {
            request.group: slot
            for slot, request in self._live()
            if since <= self._started[slot] < self._steps
        }

    def _prompt_of(self, slot: int) -> tuple[int, ...]:
        request = self._requests[slot]
        return () if request is None else request.prompt_ids

    def _chunks(
        self, bodies: list[tuple[tuple[int, ...], int]]
    ) -> tuple[tuple[Chunk, ...], list[tuple[int, ...]]]:
        """Token sequences with their slots, put together by length so that none is padded."""
        bodies = sorted(bodies, key=lambda body: len(body[0]))
        chunks = tuple(
            Chunk(slots=self._tensor([slot for _, slot in same]), length=length)
            for length, same in groupby(bodies, key=lambda body: len(body[0]))
        )
        return chunks, [ids for ids, _ in bodies]

    def _copies(self, pairs: list[tuple[int, int]]) -> Copies | None:
        if not pairs:
            return None
        return Copies(
            sources=self._tensor([source for source, _ in pairs]),
            targets=self._tensor([target for _, target in pairs]),
            length=max(len(self._prompt_of(target)) for _, target in pairs) - 1,
        )

    def _close_gaps(self) -> None:
        """Move the last active slots into free places, so that the active ones are a prefix."""
        sources, targets = [], []
        for gap in sorted(self._free):
            while self._used > gap and self._requests[self._used - 1] is None:
                self._used -= 1
            if gap >= self._used:
                break
            last = self._used = self._used - 1
            self._requests[gap], self._requests[last] = self._requests[last], None
            self._started[gap] = self._started[last]
            sources.append(last)
            targets.append(gap)
        self._free = []
        if sources:
            pair = self._tensor(sources), self._tensor(targets)
            self._slots.move(*pair)
            self._cache.move(*pair)

    def _longest(self) -> int:
        """Positions that the active slots attend to in this step, at most: known without a look at
        the device."""
        return max(len(r.prompt_ids) + self._steps - self._started[s] for s, r in self._live())

    def _forward(self, n: int, longest: int, prompts: _Prompts) -> Tensor:
        """Last hidden states of the next tokens of the first n slots, ``[n, d]``."""
        positions = self._slots.position[:n]
        layout = StepLayout(
            cache=self._cache,
            positions=positions,
            longest=longest,
            chunks=prompts.chunks,
            copies=prompts.copies,
        )
        ids = self._slots.token[:n]
        if prompts.bodies:
            ids = torch.cat([ids, self._tensor([i for body in prompts.bodies for i in body])])
            extra = self._tensor([p for body in prompts.bodies for p in range(len(body))])
            positions = torch.cat([positions, extra])
        with attention_of(self.model, attention.NAME):
            output = body_of(self.model)(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                slot_layout=layout,
            )
        return output.last_hidden_state[0, :n]

    def _prefill(self, prompts: _Prompts) -> None:
        """Prompt bodies by themselves, so that the decode step has its fixed sizes."""
        if prompts.bodies:
            self._forward(0, 0, prompts)
        elif prompts.copies is not None:
            self._cache.copy(prompts.copies)

    def _static_decode(self, rows: int, columns: int) -> Decoded:
        return self._decode(rows, self._forward(rows, columns, _Prompts()))

    def _decode(self, n: int, hidden_nd: Tensor) -> Decoded:
        """Tokens drawn for the first n slots."""
        logp_nV = log_softmax_head(
            hidden_nd,
            head_of(self.model),
            temperature=self.params.temperature,
            fp32_head=self._fp32_head,
        )[:n]
        sampled_n = self._sample(logp_nV)
        return Decoded(
            sampled_n=sampled_n,
            logp_n=logp_nV.gather(-1, sampled_n[:, None]).squeeze(-1),
            entropy_n=entropy_of(logp_nV),
        )

    def _sample(self, logp_nV: Tensor) -> Tensor:
        if self.params.greedy:
            return logp_nV.argmax(-1)
        n = len(logp_nV)
        return draw(logp_nV, uniforms(self._slots.seed[:n], self._slots.index[:n]))

    def _release(self, end: Finished) -> Completion:
        """Free the slot of a finished completion and say what it was."""
        request = self._requests[end.slot]
        assert request is not None
        self._requests[end.slot] = None
        self._free.append(end.slot)
        return Completion(
            group=request.group,
            sample=request.sample,
            token_ids=tuple(end.token_ids),
            logp_gen=tuple(end.logp_gen),
            mask=tuple(end.mask),
            segments=self._segments(self._started[end.slot]),
            finish="stop" if end.stopped else "length",
            interrupted=end.interrupted,
            entropy=end.entropy,
        )

    def _segments(self, started: int) -> tuple[tuple[int, int], ...]:
        """Versions that a completion begun at step ``started`` has seen: a step is a token."""
        segments: list[tuple[int, int]] = []
        for first, version in self._versions:
            if first >= self._steps:
                break
            entry = max(first - started, 0), version
            if segments and segments[-1][0] == entry[0]:
                segments.pop()
            segments.append(entry)
        return tuple(segments)

    # Weights

    def _live(self) -> Iterator[tuple[int, Request]]:
        return ((slot, r) for slot, r in enumerate(self._requests) if r is not None)

    @torch.inference_mode()
    def _recompute(self) -> None:
        """Keys and values of everything fed so far, with the weights of now."""
        sequences = []
        for slot, request in self._live():
            generated = self._slots.tokens[slot, : self._steps - self._started[slot]].tolist()
            fed = (*request.prompt_ids, *generated)[:-1]
            if fed:
                sequences.append((fed, slot))
        if sequences:
            chunks, bodies = self._chunks(sequences)
            self._forward(0, 0, _Prompts(chunks=chunks, bodies=bodies))

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.model.device)
