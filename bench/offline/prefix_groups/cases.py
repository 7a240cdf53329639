"""The jobs that BatchLLM was evaluated on, and the systems each of them runs on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.offline.baselines.lru import lru_saved_tokens
from bench.offline.prefix_groups.unit import (
    BATCHED,
    BATCHLLM,
    BLOCK_TOKENS,
    BOTH,
    BOTH_MANY,
    CHUNK,
    CHUNKED,
    GROUPED,
    KV_BYTES,
    PREFIX,
    REORDERED,
    RESOURCES,
    VLLM,
    Outcome,
    Steps,
    System,
    run,
)
from bench.traces.batchmix import Kind, mixed_job
from muxcluster.offline.choice import Unplanned
from muxcluster.offline.prefix.prompts import flat_prompts

# Requests of a job that has all of the memory, and of a quick one; a smaller job has proportionally
# less memory and fewer rows. Case 1 with 1,000 requests: 1.54 times the prefix cache, 1.15 of that
# from batching and order, cool-down 16 % earlier; whole run 1.52, 1.13 and 13 %. With 500 requests
# and all rows: 1.53, 1.04 and -2 %, because memory held fewer requests than the limit of 256.
REQUESTS, QUICK = 3000, 1000
LEAST_BYTES = 3e9  # of a job, so that the longest prompts fit
_OUTPUT = 100


@dataclass(frozen=True, slots=True)
class Case:
    """A job in random order."""

    name: str
    kinds: tuple[Kind, ...]
    paper: Mapping[str, float]  # requests/s, or ratios, that BatchLLM reports, by system

    def job(self, num_requests: int, seed: int) -> Unplanned:
        """About `num_requests` requests."""
        made = mixed_job(self.kinds, num_requests, np.random.default_rng(seed))
        size_bytes = max(LEAST_BYTES, KV_BYTES * num_requests / REQUESTS)
        prompts = flat_prompts(made.ids, made.offsets)
        return Unplanned(prompts, made.output_tokens, RESOURCES, size_bytes, BLOCK_TOKENS, seed)


def _degrees(mean: float, prefix: int, distinct: int, output: int) -> tuple[Kind, ...]:
    """Groups of the two whole sizes next to the mean."""
    low = int(mean)
    high_share = (mean - low) * (low + 1) / mean
    return (
        Kind(1 - high_share, low, prefix, distinct, output),
        Kind(high_share, low + 1, prefix, distinct, output),
    )


CASE_1 = Case(
    "case 1",
    (Kind(1.0, 7, 1100, 400, 200),),
    {
        VLLM.name: 7.13,
        PREFIX.name: 9.9,
        CHUNKED.name: 7.08,
        BOTH.name: 9.83,
        BATCHLLM.name: 12.85,
    },
)
CASE_2 = Case("case 2", _degrees(11.36, 770, 978, _OUTPUT), {BOTH.name: 1.0, BATCHLLM.name: 1.47})
# As case 1, but half of the groups answer at length and the others in a few words.
TWO_KINDS = Case(
    "two kinds of groups",
    (Kind(0.5, 7, 1100, 400, 380), Kind(0.5, 7, 1100, 400, 20)),
    {},
)
MICRO = tuple(
    Case(
        f"{prefix}/{distinct}, degree {degree}", (Kind(1.0, degree, prefix, distinct, _OUTPUT),), {}
    )
    for prefix, distinct in ((2000, 200), (1000, 1000), (200, 2000))
    for degree in (4, 16)
)
LADDER = (VLLM, PREFIX, CHUNKED, BOTH, BOTH_MANY, GROUPED, REORDERED, BATCHED, BATCHLLM)
OURS = (BOTH, GROUPED, REORDERED, BATCHED, BATCHLLM)
RIVALS = (BOTH, BOTH_MANY, BATCHLLM)


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """A case on some systems."""

    case: Case
    optimum: float  # share of its prompt tokens that its tree shares
    # what arrival order finds in a cache as large as all of the memory that holds nothing but
    # prompts
    lru: float
    outcomes: Mapping[str, Outcome]

    def makespan_s(self, system: System) -> float:
        """Of the whole job."""
        return self.outcomes[system.name].makespan_s

    def cool_down_s(self, system: System) -> float:
        """Until nothing but decoding is left."""
        return self.outcomes[system.name].steps.cool_down_s

    @property
    def speedup(self) -> float:
        """Of BatchLLM over arrival order with prefix cache and chunks, in its better setting."""
        return min(map(self.makespan_s, (BOTH, BOTH_MANY))) / self.makespan_s(BATCHLLM)

    def row(self) -> dict[str, Any]:
        """For the record."""
        rows = {
            name: {
                "requests_per_s": round(each.requests_per_s, 3),
                "paper": self.case.paper.get(name),
                "makespan_s": round(each.makespan_s, 2),
                "until_cool_down_s": round(each.steps.cool_down_s, 2),
                "saving": round(each.saving, 4),
                "tokens_a_step": round(float(_before_cool_down(each.steps).mean()), 1),
                "share_of_small_steps": round(_share_of_small(each.steps), 4),
                "recomputed_tokens": each.num_recomputed,
            }
            for name, each in self.outcomes.items()
        }
        return {"case": self.case.name, **self._savings(), "systems": rows}

    def _savings(self) -> dict[str, float]:
        return {"optimum": round(self.optimum, 4), "lru": round(self.lru, 4)}


def run_case(case: Case, systems: Iterable[System], num_requests: int, seed: int) -> Ran:
    """All of them, one after the other."""
    job = case.job(num_requests, seed)
    tree = job.with_tree().tree
    capacity = int(job.size_bytes) // RESOURCES.kv_bytes
    found = Ran(
        case,
        tree.saved_tokens / tree.prompt_tokens,
        lru_saved_tokens(tree, range(len(job.prompts)), capacity) / tree.prompt_tokens,
        {system.name: run(job, system) for system in systems},
    )
    print(found.row(), flush=True)
    return found


def _before_cool_down(steps: Steps) -> np.ndarray:
    return steps.tokens[steps.end_s <= steps.cool_down_s]


def _share_of_small(steps: Steps) -> float:
    """Steps of less than half a chunk while there were prompts: the valleys."""
    return float((_before_cool_down(steps) < CHUNK / 2).mean())


def valleys(steps: Steps, edges_s: Sequence[float]) -> dict[str, list[float]]:
    """Mean and least tokens of the steps that ended between consecutive edges; none counts as 0."""
    place = np.searchsorted(edges_s, steps.end_s, side="left") - 1
    mean, least = [], []
    for at in range(len(edges_s) - 1):
        tokens = steps.tokens[place == at]
        mean.append(round(float(tokens.mean()), 1) if len(tokens) else 0.0)
        least.append(float(tokens.min()) if len(tokens) else 0.0)
    return {"mean": mean, "least": least}
