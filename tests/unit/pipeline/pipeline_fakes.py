"""Groups, completions and generators without a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec
import torch

from scalerl.algorithm.effective import Rules, assemble
from scalerl.config.axes import RegimeConfig
from scalerl.data.curriculum import Curriculum, PromptStream
from scalerl.messages import (
    Completion,
    Counters,
    Evaluate,
    Evaluated,
    FromGenerator,
    Group,
    Progress,
    Prompt,
    Request,
    Scored,
    Shutdown,
    Submit,
    ToGenerator,
    WeightsLoaded,
    WeightsReady,
)
from scalerl.pipeline.buffer import Buffer, make_regime
from scalerl.pipeline.fleet import Lost, Word
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.rollouts import Rollouts, RolloutSettings
from scalerl.pipeline.state import RolloutState, begin_again, rollout_state
from scalerl.pipeline.weights import InProcessStore


def make_prompt(name: str, token_ids: tuple[int, ...] = (1, 2)) -> Prompt:
    return Prompt(id=name, text=name, token_ids=token_ids, answer="", task="fake")


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


class Clock:
    """Time that moves when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeGenerator:
    """Slots, a token a tick, weights that change in flight; no model."""

    def __init__(self, rng: random.Random, slots: int, lengths: Callable[[Request], int]) -> None:
        self._rng = rng
        self._slots = slots
        self._length = lengths
        self._inbox: list[ToGenerator] = []
        self._queue: list[Request] = []
        self._active: list[tuple[Request, int, list[tuple[int, int]]]] = []  # …, tokens, segments
        self._generated = 0
        self.version = -1
        self.last: list[FromGenerator] = []
        self.deaf = False  # hangs

    def post(self, message: ToGenerator) -> None:
        self._inbox.append(message)

    def tick(self) -> list[FromGenerator]:
        """Sometimes nothing happens; else messages, then a token for every slot."""
        if self.deaf or self._rng.random() < 0.3:
            return []
        said: list[FromGenerator] = []
        while self._inbox:
            said += self._handle(self._inbox.pop(0))
        while self._queue and len(self._active) < self._slots:
            self._active.append((self._queue.pop(0), 0, []))
        going: list[tuple[Request, int, list[tuple[int, int]]]] = []
        done: list[Completion] = []
        for request, tokens, segments in self._active:
            if not segments or segments[-1][1] != self.version:
                segments.append((tokens, self.version))
            self._generated += 1
            if tokens + 1 < self._length(request):
                going.append((request, tokens + 1, segments))
            else:
                done.append(
                    make_completion(
                        request.group,
                        request.sample,
                        tokens=tokens + 1,
                        segments=tuple(segments),
                        finish="length" if request.seed % 11 == 0 else "stop",
                    )
                )
        self._active = going
        self._rng.shuffle(done)
        if done or self._rng.random() < 0.1:
            said.append(self.progress(done))
        self.last = said
        return said

    def progress(self, done: Sequence[Completion]) -> Progress:
        counters = Counters(
            tokens_generated=self._generated,
            tokens_in_flight=sum(tokens for _, tokens, _ in self._active),
        )
        return Progress(completions=tuple(done), version=self.version, counters=counters)

    def _handle(self, message: ToGenerator) -> list[FromGenerator]:
        match message:
            case WeightsReady(version=version, slot=slot):
                assert version >= self.version, "weights went back"
                self.version = version
                return [WeightsLoaded(version=version, slot=slot)]
            case Submit(requests=requests):
                self._queue += [r for r in requests if self._length(r) > 0]  # 0: it is forgotten
            case Evaluate(step=step, requests=requests):
                completions = tuple(
                    make_completion(r.group, r.sample, segments=((0, self.version),))
                    for r in requests
                )
                return [
                    Evaluated(
                        step=step,
                        version=self.version,
                        completions=completions,
                        seconds=1.0,
                        counters=Counters(),
                    )
                ]
            case Shutdown():
                self.deaf = True
        return []


class FakeFleet:
    """Generators that tick at random; faults are put in by `mischief`, called before each poll."""

    def __init__(
        self,
        size: int,
        *,
        seed: int = 0,
        slots: int = 4,
        lengths: Callable[[Request], int] = lambda request: 1 + request.seed % 7,
        clock: Clock | None = None,
        mischief: Callable[[FakeFleet], list[tuple[int, Word]]] = lambda fleet: [],
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = clock or Clock()
        self.restarted: list[int] = []
        self.submitted: list[Request] = []
        self._slots, self._lengths, self._mischief = slots, lengths, mischief
        self.generators = [self._make() for _ in range(size)]

    def _make(self) -> FakeGenerator:
        return FakeGenerator(self.rng, self._slots, self._lengths)

    @property
    def size(self) -> int:
        return len(self.generators)

    def send(self, generator: int, message: ToGenerator) -> None:
        if isinstance(message, Submit):
            self.submitted += message.requests
        self.generators[generator].post(message)

    def poll(self, timeout_s: float) -> list[tuple[int, Word]]:
        self.clock.now += timeout_s
        words = self._mischief(self)
        lost = {i for i, word in words if isinstance(word, Lost)}
        for i, generator in enumerate(self.generators):
            if i not in lost:
                words += [(i, said) for said in generator.tick()]
        return words

    def restart(self, generator: int) -> None:
        self.restarted.append(generator)
        self.generators[generator] = self._make()

    def close(self, grace_s: float) -> None:
        self.generators = []


def fake_score(prompt: Prompt, completion: Completion) -> Scored:
    """Right or wrong by the numbers, so that a sample begun again is judged alike."""
    right = (completion.group * 7 + completion.sample * 3 + len(completion.token_ids)) % 3 == 0
    return Scored(
        completion=completion,
        reward=1.0 if right else -1.0,
        outcome="correct" if right else "wrong",
    )


class SlowScores:
    """Told at once, or some polls later, in any order. A worker that dies ends its answer as
    `error`; so do some checks by themselves."""

    def __init__(self, seed: int, *, slow: float = 0.7, deaths: float = 0.05) -> None:
        self._rng = random.Random(seed)
        self._slow, self._deaths = slow, deaths
        self.waiting: list[tuple[int, Prompt, Completion]] = []  # polls left
        self.ended: set[tuple[int, int]] = set()  # group and sample of those that a death ended

    def submit(self, prompt: Prompt, completion: Completion) -> Scored | None:
        if self._rng.random() >= self._slow:
            return self.verdict(prompt, completion)
        delay = self._rng.choice((0, 1, 2, 5, 40))
        self.waiting.append((delay, prompt, completion))
        return None

    def collect(self) -> list[Scored]:
        came: list[Scored] = []
        waiting, self.waiting = self.waiting, []
        for polls, prompt, completion in waiting:
            if self._rng.random() < self._deaths:
                self.ended.add((completion.group, completion.sample))
                came.append(self.error(completion))
            elif polls == 0:
                came.append(self.verdict(prompt, completion))
            else:
                self.waiting.append((polls - 1, prompt, completion))
        self._rng.shuffle(came)
        return came

    def verdict(self, prompt: Prompt, completion: Completion) -> Scored:
        if (completion.group + completion.sample) % 9 == 0:
            return self.error(completion)
        return fake_score(prompt, completion)

    def error(self, completion: Completion) -> Scored:
        return Scored(completion=completion, reward=-1.0, outcome="error")


def fake_request(group: int, prompt: Prompt, sample: int) -> Request:
    seed = random.Random(f"{group} {sample}").randrange(1 << 30)
    return Request(group=group, sample=sample, prompt_ids=prompt.token_ids, seed=seed)


class World:
    """The trainer's side around a fake fleet: real rollouts, buffer, stream, store and ledger."""

    def __init__(
        self,
        fleet: FakeFleet,
        *,
        regime: RegimeConfig,
        groups: int = 2,
        completions: int = 2,
        prompts: int = 8,
        prompt_ids: Callable[[int], tuple[int, ...]] = lambda i: (i, 2),
        steps: int = 10,
        rules: Rules | None = None,
        curriculum: Curriculum = "uniform",
        restarts: int = 0,
        stall_s: float = 60.0,
        vocabulary: int | None = None,
        seed: int = 1,
        score: Callable[[Prompt, Completion], Scored | None] = fake_score,
        scores: Callable[[], Sequence[Scored]] = lambda: (),
    ) -> None:
        self.fleet = fleet
        self.steps = steps
        self.version = 0
        self.rules = rules or Rules()
        self.trained: list[tuple[Group, ...]] = []  # by step
        self.spent: list[tuple[Group, ...]] = []  # the useless ones beside them
        self.warnings: list[str] = []
        self.rollouts = Rollouts(
            fleet=fleet,
            store=InProcessStore(4, readers=fleet.size),
            buffer=Buffer(make_regime(regime, groups), groups),
            stream=PromptStream(
                [make_prompt(f"p{i:02d}", prompt_ids(i)) for i in range(prompts)],
                seed=seed,
                curriculum=curriculum,
            ),
            ledger=Ledger(),
            rules=self.rules,
            settings=RolloutSettings(
                completions=completions,
                slots=4,
                last_version=steps,
                dynamic_limit=50,
                stall_s=stall_s,
                restarts=restarts,
                vocabulary=vocabulary,
            ),
            score=score,
            scores=scores,
            request=fake_request,
            clock=fleet.clock,
            warn=self.warnings.append,
        )

    def weights(self) -> dict[str, torch.Tensor]:
        return {"w": torch.tensor([float(self.version)])}

    def begin(self) -> None:
        self.rollouts.publish(self.version, self.weights())

    def step(self) -> bool:
        """One step of the training loop; False at the end of the prompts."""
        groups, useless = self.rollouts.take(self.version)
        if not groups:
            self.spent.append(tuple(useless))
            return False
        k = self.rollouts.buffer.regime.k
        for group in groups:
            oldest = min(s.completion.oldest_version for s in group.completions)
            assert group.admitted_version <= oldest
            assert self.version - oldest <= k
        self.trained.append(tuple(groups))
        self.spent.append(tuple(useless))
        effective = assemble([*groups, *useless], self.rules)
        self.version += 1
        self.rollouts.publish(self.version, self.weights())
        self.rollouts.ledger.use(effective.spent)
        self.rollouts.close_ledger()
        return True

    def run(self) -> None:
        self.begin()
        while self.version < self.steps and self.step():
            pass

    def checkpoint(self) -> bytes:
        return msgspec.msgpack.encode(rollout_state(self.rollouts))

    def resume(self, saved: bytes, before: World) -> None:
        """Go on where `before` had made `saved`; what it did after that is forgotten."""
        begin_again(self.rollouts, msgspec.msgpack.decode(saved, type=RolloutState))
        self.trained = before.trained[: self.version]
        self.spent = before.spent[: self.version]
