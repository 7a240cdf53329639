"""Why requests are not simply sent where fewest are open: a small simulation of both ways."""

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.served import JobRecord, ModelStats, UnitStats
from muxcluster.router.routing import CHUNK_TOKENS, Candidate, PrefixMemory, choose
from muxcluster.router.unit_load import LoadMeter

TOKEN_S = 0.0002
REPORT_S = 0.5
NUM_TENANTS = 12
SHARED_CHUNKS, OWN_CHUNKS = 24, 2
CACHE_CHUNKS = 8 * SHARED_CHUNKS
"""Of one unit: no unit holds what all tenants share."""


@dataclass
class Unit:
    """Prefills one prompt after the other and keeps the chunks used last; decodes cost nothing."""

    free_s: float = 0.0
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    ends: list[tuple[float, int, float]] = field(default_factory=list)
    load: LoadMeter = field(default_factory=LoadMeter)
    prefixes: PrefixMemory = field(default_factory=PrefixMemory)
    done: int = 0
    jobs: list[JobRecord] = field(default_factory=list)

    def take(self, tenant: int, now: float) -> float:
        """A prompt of `tenant` comes; seconds to its first token."""
        num_left = OWN_CHUNKS + (0 if tenant in self.cache else SHARED_CHUNKS)
        self.cache[tenant] = None
        self.cache.move_to_end(tenant)
        while len(self.cache) * SHARED_CHUNKS > CACHE_CHUNKS:
            self.cache.popitem(last=False)
        tokens = num_left * CHUNK_TOKENS
        start_s = max(now, self.free_s)
        self.free_s = start_s + tokens * TOKEN_S
        heapq.heappush(self.ends, (self.free_s, tokens, start_s))
        return self.free_s - now

    def tick(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            end_s, tokens, start_s = heapq.heappop(self.ends)
            self.done += tokens
            self.jobs.append(JobRecord(0, "m", "prefill", 0, 1.0, start_s, end_s, 1, tokens))

    def report(self, now: float) -> None:
        waiting = sum(tokens for _, tokens, _ in self.ends)
        model = ModelStats(
            "m", num_waiting=len(self.ends), waiting_tokens=waiting, prompt_tokens=self.done
        )
        self.load.hear(UnitStats("u", now, 1, 1, (model,), tuple(self.jobs)), now)
        self.jobs.clear()


Choose = Callable[[Request, Sequence[Unit], float], int]


def mean_ttft_s(choose: Choose, requests_per_s: float) -> float:
    rng = random.Random(7)
    shared = [rng.choices(range(9999), k=SHARED_CHUNKS * CHUNK_TOKENS) for _ in range(NUM_TENANTS)]
    units = [Unit(), Unit(), Unit()]
    now, next_report_s, waits = 0.0, REPORT_S, []
    for _ in range(1000):
        now += rng.expovariate(requests_per_s)
        while next_report_s <= now:
            for unit in units:
                unit.tick(next_report_s)
                unit.report(next_report_s)
            next_report_s += REPORT_S
        for unit in units:
            unit.tick(now)
        tenant = min(int(rng.expovariate(0.4)), NUM_TENANTS - 1)
        own = rng.choices(range(9999), k=OWN_CHUNKS * CHUNK_TOKENS)
        asked = Request("r", "m", np.array(shared[tenant] + own, np.int32), SamplingParams())
        waits.append(units[choose(asked, units, now)].take(tenant, now))
    return sum(waits) / len(waits)


def least_open(request: Request, units: Sequence[Unit], now: float) -> int:
    return min(range(len(units)), key=lambda i: len(units[i].ends))


def routed(request: Request, units: Sequence[Unit], now: float) -> int:
    candidates = [
        Candidate(
            str(i), u.load.wait_s("m", now), u.load.token_s("m"), u.load.num_requests(), u.prefixes
        )
        for i, u in enumerate(units)
    ]
    choice = choose(request, candidates)
    index = int(choice.unit_id)
    units[index].load.send("m", choice.num_tokens, now)
    return index


def test_first_tokens_come_earlier_than_from_the_unit_with_fewest_open() -> None:
    """Under a load that three caches together hold, and none alone."""
    for requests_per_s in (6.0, 30.0):
        assert mean_ttft_s(routed, requests_per_s) < 0.7 * mean_ttft_s(least_open, requests_per_s)
