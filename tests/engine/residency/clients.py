"""Many clients of a unit whose models take turns in memory, and one who kills its processes."""

import os
import queue
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from muxcluster.core.events import FinishReason, TokenDelta
from muxcluster.core.request import ServiceClass
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.residency.executor import ResidencyExecutor
from muxcluster.engine.unit.unit import Unit
from tests.engine.live_units import children
from tests.engine.units import check_nothing_leaks, greedy, request_of
from tests.oracles import GreedyOracle

NUM_TOKENS = 6
NUM_PROMPTS = 5  # different ones of each model: Hugging Face answers each once
PATIENCE_S = 120.0


def prompts_of(spec: UnitSpec) -> dict[str, list[list[int]]]:
    """Prompts by model."""
    rng = random.Random(1)
    return {
        model.name: [
            [rng.randrange(model.vocab_size) for _ in range(rng.randint(1, 40))]
            for _ in range(NUM_PROMPTS)
        ]
        for model in spec.models
    }


@dataclass
class Clients:
    """Asks for models by a Zipf law, keeps `num_clients` requests open, and checks every end."""

    unit: Unit
    executor: ResidencyExecutor
    spec: UnitSpec
    oracles: Mapping[str, GreedyOracle]
    num_clients: int = 64
    seed: int = 0
    ends: "queue.SimpleQueue[tuple[str, TokenDelta]]" = field(default_factory=queue.SimpleQueue)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    asked: dict[str, list[int]] = field(default_factory=dict)
    by_model: Counter[str] = field(default_factory=Counter)

    def hear(self, deltas: Mapping[str, TokenDelta]) -> None:
        """The unit's output; called on its thread."""
        for request_id, delta in deltas.items():
            self.tokens[request_id] += delta.tokens
            if delta.finished is not None or delta.rejected is not None:
                self.ends.put((request_id, delta))

    def run(self, num_requests: int, disturb: Callable[[int], None]) -> None:
        """Ask `num_requests` times. disturb: called with the number of ends so far, after each."""
        rng, prompts = random.Random(self.seed), prompts_of(self.spec)
        names = [model.name for model in self.spec.models]
        weights = [1 / (place + 1) for place in range(len(names))]
        num_open = num_ended = num_asked = 0
        ended: set[str] = set()
        while num_ended < num_requests:
            while num_open < self.num_clients and num_asked < num_requests:
                (name,) = rng.choices(names, weights)
                self._ask(f"{name}/{num_asked}", rng.choice(prompts[name]), rng)
                num_asked, num_open = num_asked + 1, num_open + 1
            request_id, delta = self.ends.get(timeout=PATIENCE_S)
            assert request_id not in ended, f"{request_id} ended twice"
            ended.add(request_id)
            num_ended, num_open = num_ended + 1, num_open - 1
            self._check(request_id, delta)
            disturb(num_ended)
        check_nothing_leaks(self.unit)

    def _ask(self, request_id: str, prompt: Sequence[int], rng: random.Random) -> None:
        self.tokens[request_id], self.asked[request_id] = [], list(prompt)
        request = request_of(request_id, prompt, greedy(NUM_TOKENS))
        if rng.random() < 0.2:
            request = replace(request, service_class=ServiceClass.BATCH)
        self.unit.submit(request)

    def _check(self, request_id: str, delta: TokenDelta) -> None:
        finished = delta.finished
        assert finished is not None, delta.rejected
        assert finished.reason is FinishReason.LENGTH, finished
        tokens = self.tokens.pop(request_id)
        assert len(tokens) == NUM_TOKENS
        name = request_id.split("/")[0]
        self.oracles[name].check(self.asked.pop(request_id), tokens)
        self.by_model[name] += 1


@dataclass
class Killer:
    """Kills processes of a unit with SIGKILL."""

    executor: ResidencyExecutor
    rng: random.Random
    kills: Counter[str] = field(default_factory=Counter)

    def worker(self) -> None:
        """Kill a worker of some resident model."""
        owners = list(self.executor.model_pids.values())
        workers = [pid for owner in owners for pid in children(owner).values()]
        self._kill("worker", workers)

    def model_owner(self) -> None:
        """Kill the owner of some model that is resident or on its way."""
        self._kill("model owner", list(self.executor.model_pids.values()))

    def waking(self) -> None:
        """Kill the next owner that is made, as soon as it is."""
        before = set(self.executor.model_pids.values())
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            made = set(self.executor.model_pids.values()) - before
            if made:
                self._kill("waking", list(made))
                return
            time.sleep(0.002)

    def pool_owner(self) -> None:
        self._kill("pool owner", [self.executor.owner_pid])

    def _kill(self, what: str, pids: list[int]) -> None:
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self.rng.choice(pids), signal.SIGKILL)
                self.kills[what] += 1
