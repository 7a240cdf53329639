"""Savings by a batch job's shared prefixes (BatchLLM Eq. 2): computed, in a cache, simulated.

All in whole blocks of 16 tokens, of which an engine computes the last of each prompt; the unit is
that of `batchllm.py`. Jobs: that bench's first case, `bbh` (its prompts' bytes as tokens, by task
as they come, and mixed), Mooncake's traces and ServeGen's offline traces a and b. Output tokens
that the data do not tell are taken as 100. --quick: a sixth of the first job and of its memory, and
no real ones.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.pop(0)  # the script's folder, whose modules would hide others
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import numpy as np

from bench.harness import Bench, Claim, make_parser
from bench.offline.baselines.lifetimes import prefix_lifetimes
from bench.offline.baselines.lru import lru_saved_tokens
from bench.offline.baselines.maximize_reuse import maximize_reuse
from bench.offline.prefix_groups.cases import CASE_1, QUICK, REQUESTS
from bench.offline.prefix_groups.unit import (
    BATCHLLM,
    BLOCK_TOKENS,
    BOTH_MANY,
    KV_BYTES,
    RESOURCES,
    run,
)
from bench.traces.servegen_offline import read_servegen_offline
from muxcluster.offline.choice import Unplanned
from muxcluster.offline.order.one_level import best_prefixes
from muxcluster.offline.prefix.groups import group_by_prefix, order_by_decoding
from muxcluster.offline.prefix.prompts import Prompts, block_prompts, flat_prompts, token_prompts
from muxcluster.offline.prefix.tree import PrefixTree, build_tree
from muxcluster.workload.arrival import Arrival
from muxcluster.workload.files.mooncake import read_mooncake

_OUTPUT = 100  # Output tokens where the data do not tell


@dataclass(frozen=True, slots=True)
class Levels:
    """Shares that need not be computed, 0 to 1."""

    optimum: float  # every node of the tree computed once
    # greedy, one_level: by one level of prefixes alone, chosen by Alg. 1 and exactly.
    greedy: float
    one_level: float


@dataclass(frozen=True, slots=True)
class Saving:
    """Shares of a job's prompt tokens that need not be computed, 0 to 1."""

    name: str
    num_requests: int
    prompt_tokens: int
    plan_tokens: int
    tokens: Levels  # on paper
    # the same of a trace's own blocks, the last of a prompt counted as a whole one; None where
    # there are none
    blocks: Levels | None
    # batchllm, fcfs: what came of our order, and of arrival order, in the simulator
    batchllm: float
    fcfs: float
    # arrival order in a cache as large as the unit's whole KV memory that holds nothing but
    # prompts
    lru: float
    lru_of_plan: float  # as large as what the plan holds at most, `plan_tokens`


def main(argv: Sequence[str] | None = None) -> None:
    """Run the bench."""
    bench = Bench(make_parser(__doc__), argv)
    seed, quick = bench.options.seed, bench.options.quick
    first = CASE_1.job(QUICK if quick else REQUESTS, seed)
    found = [saving_of("paper-like", first)]
    for name, job in () if quick else real_jobs(bench.data(), seed):
        found.append(saving_of(name, job))
    shares = [each.batchllm / each.tokens.optimum for each in found]
    bench.publish(
        [
            Claim("saving_of_optimum_min", min(shares), "", 1.0),
        ],
        {"saving_of_optimum": shares},
        savings=[asdict(each) for each in found],
    )


def saving_of(name: str, job: Unplanned) -> Saving:
    """All figures of one job."""
    tree, prompts = job.with_tree().tree, job.prompts
    exact = group_by_prefix(tree, best_prefixes(tree))
    ordered = order_by_decoding(exact, prompts.lengths, job.output_tokens.astype(np.float64))
    plan_tokens = prefix_lifetimes(tree, ordered.requests).peak_tokens
    pool_tokens = int(job.size_bytes) // RESOURCES.kv_bytes
    lru, lru_of_plan = (
        lru_saved_tokens(tree, range(len(prompts)), size) / tree.prompt_tokens
        for size in (pool_tokens, plan_tokens)
    )
    blocks = None
    if prompts.id_tokens > 1:
        blocks = _levels(build_tree(flat_prompts(prompts.ids, prompts.offsets)))
    found = Saving(
        name,
        len(prompts),
        tree.prompt_tokens,
        plan_tokens,
        _levels(tree),
        blocks,
        run(job, BATCHLLM).saving,
        run(job, BOTH_MANY).saving,
        lru,
        lru_of_plan,
    )
    print(found, flush=True)
    return found


def _levels(tree: PrefixTree) -> Levels:
    total = tree.prompt_tokens
    greedy, exact = (
        group_by_prefix(tree, chosen) for chosen in (maximize_reuse(tree), best_prefixes(tree))
    )
    return Levels(
        tree.saved_tokens / total, greedy.saved_tokens / total, exact.saved_tokens / total
    )


REAL = (
    "bbh",
    "bbh, mixed",
    "mooncake conversation",
    "mooncake synthetic",
    "servegen a",
    "servegen b",
)


def real_jobs(
    folder: Path, seed: int, names: Sequence[str] = REAL
) -> Iterator[tuple[str, Unplanned]]:
    """Those of `names` whose data are in `folder`."""
    for name in names:
        source, _, part = name.partition(" ")
        if source.startswith("bbh") and (folder / "bbh").is_dir():
            texts = _bbh(folder / "bbh")
            numbers = np.arange(len(texts))
            if part:
                numbers = np.random.default_rng(seed).permutation(numbers)
            prompts = token_prompts([texts[number] for number in numbers.tolist()])
            yield name, _unplanned(prompts, [_OUTPUT] * len(texts), seed)
        elif source == "mooncake":
            for path in folder.glob(f"mooncake/{part}_trace.*"):
                yield name, _traced(read_mooncake(path, "m"), seed)
        elif source == "servegen":
            for path in folder.glob(f"servegen_offline/trace_{part}.*"):
                yield name, _traced(read_servegen_offline(path, "m", _OUTPUT), seed)


def _bbh(folder: Path) -> list[np.ndarray]:
    texts = []
    for path in sorted(folder.glob("bbh/*.json")):
        shots = (folder / f"cot-prompts/{path.stem}.txt").read_text(encoding="utf-8")
        shots = shots.split("-----\n", 1)[1]
        for example in json.loads(path.read_text(encoding="utf-8"))["examples"]:
            question = f"{shots}\n\nQ: {example['input']}\nA: Let's think step by step.\n"
            texts.append(np.frombuffer(question.encode(), dtype=np.uint8).astype(np.int32))
    return texts


def _traced(arrivals: Iterable[Arrival], seed: int) -> Unplanned:
    found = [(each, each.prefix) for each in arrivals]
    prefixes = [prefix for _, prefix in found if prefix is not None]
    if len(prefixes) != len(found):
        raise ValueError("a request of the trace has no blocks")
    prompts = block_prompts(
        [prefix.block_ids for prefix in prefixes],
        [arrival.prompt_tokens for arrival, _ in found],
        prefixes[0].block_tokens,
    )
    return _unplanned(prompts, [arrival.output_tokens for arrival, _ in found], seed)


def _unplanned(prompts: Prompts, outputs: list[int], seed: int) -> Unplanned:
    lengths = np.array(outputs, dtype=np.int64)
    return Unplanned(prompts, lengths, RESOURCES, KV_BYTES, BLOCK_TOKENS, seed)


if __name__ == "__main__":
    main()
