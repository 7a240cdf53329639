"""Batch jobs of two models: their order, interactive streams beside them, the estimate of their
end, and what kill -9 costs.

Two tiny models (tests/cli/batches.py) on one CPU thread in mixed jobs under `packing: hybrid`, in a
KV pool that holds some forty prompts. A job has 2,000 requests in random order, 8 of a model each
sharing some 256 prompt tokens before 24 of their own, 8 output tokens. The orders `auto` and
`fcfs` take turns on the same engine, each job under a cache salt of its own; tokens/s count prompt
and output tokens from reading the file to the last answer, planning too. Then 64 interactive
streams (16 to 32 tokens, 16 out, 8 s pauses), alone and beside a job; their targets, 0.5 s to the
first token and 0.1 s for each other, go with each request. The error of the estimate: of the time
that is left, when half of the lines have ended; `estimates` has all later moments, as a share of
the whole run. At last `muxcluster batch run` is killed five times at random. --quick: 240
requests, two runs, two kills.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# In the place of this folder, whose http.py would hide the standard library's.
sys.path[0] = str(ROOT)

import numpy as np

from bench.batches.kills import run_killed
from bench.batches.streams import SLO, Streams
from bench.harness import Bench, Claim, make_parser
from bench.traces.batchmix import Kind, mixed_job
from muxcluster.batch.plan.setting import settings_of
from muxcluster.batch.store.job import Order
from muxcluster.batch.store.store import BatchStore
from muxcluster.cli.batch_local.running import local_planner, local_runner
from muxcluster.cli.batch_local.units import LocalService, local_service, local_specs
from muxcluster.config.load import Config, load_config
from muxcluster.http.settings import ApiSettings, QueueLimits
from tests.cli.batches import FAMILIES, build_models, write_config

COUNT, QUICK_COUNT = 2000, 240
WARM, WARM_COUNT = "warm", 60  # A job that nobody measures
KIND = Kind(1.0, degree=8, prefix=256, distinct=24, output=8)
VOCABULARY = 500
POLICY = {
    "scheduler": "mixed",
    "packing": "hybrid",
    "token_budget": 512,
    "kv_gb": 0.03,
    "num_threads": 1,
}
ORDERS = ("fcfs", "auto", "auto", "fcfs")
ALONE_S = 40.0
SAMPLE_S = 0.05
GOAL = 0.20


@dataclass(frozen=True, slots=True)
class Ran:
    """One job on the engine."""

    order: str
    chosen: dict[str, str]
    seconds: float
    planned_s: float  # of its seconds, those until its plan was there
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    # (seconds since its start, share of its lines that have ended, seconds that should be left)
    estimates: list[tuple[float, float, float]]

    @property
    def tokens_per_s(self) -> float:
        """Prompt and output tokens."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds

    def errors(self) -> list[float]:
        """|estimate - truth| of the end from the half-way point on, over the whole run."""
        later = [each for each in self.estimates if each[1] >= 0.5]
        return [abs(at + left - self.seconds) / self.seconds for at, _, left in later]

    def error_at_half(self) -> float:
        """|estimate - truth| / truth of what is left when half of the lines have ended."""
        at, _, left = next(each for each in self.estimates if each[1] >= 0.5)
        truth = self.seconds - at
        return abs(left - truth) / truth


@dataclass(frozen=True, slots=True)
class Engine:
    """The units, and where jobs are kept."""

    local: LocalService
    config: Config
    folder: Path

    async def run(self, job: Path, order: str) -> Ran:
        """Run the job as `muxcluster batch run` does."""
        settings = {name: settings_of(self.config, name, None)[0] for name in FAMILIES}
        store = BatchStore(self.folder / job.stem)
        store.path_of("in").symlink_to(job)
        store.create(Order("bench", "in", None), int(time.time()), "b")
        planner = local_planner(self.local, settings, order)
        runner = local_runner(store, self.local, planner, list(FAMILIES))
        start_s, estimates = time.monotonic(), []
        work = asyncio.create_task(runner.run("b"))
        while not (await asyncio.wait((work,), timeout=SAMPLE_S))[0]:
            self.local.check()
            progress = runner.progress("b")
            left_s = None if progress is None else progress.left_s()
            if progress is not None and left_s is not None:
                share = progress.num_ended / progress.num_total
                estimates.append((time.monotonic() - start_s, share, left_s))
        seconds = time.monotonic() - start_s
        ended = work.result()
        store.close()
        if ended.progress is None or ended.batch.num_failed:
            raise RuntimeError(f"{ended.batch.num_failed} lines failed: {ended.batch}")
        use = ended.progress.use
        planned_s = ended.progress.started_s - start_s
        tokens = (use.prompt, use.cached, use.output)
        ran = Ran(order, planner.chosen, seconds, planned_s, *tokens, estimates)
        print(
            f"{order} {planner.chosen}: {ran.tokens_per_s:.0f} tokens/s in {seconds:.1f} s, "
            f"{use.cached / use.prompt:.0%} of the prompts cached",
            flush=True,
        )
        return ran


def write_jobs(folder: Path, count: int, names: Sequence[str], seed: int) -> list[Path]:
    """The same job again and again, each with a salt that keeps its cached prompts to itself."""
    rng = np.random.default_rng(seed)
    lines = []
    for model in FAMILIES:
        job = mixed_job([KIND], count // len(FAMILIES), rng)
        for prompt, output in zip(
            np.split(job.ids % VOCABULARY + 3, job.offsets[1:-1]), job.output_tokens, strict=True
        ):
            body = {"model": model, "prompt": prompt.tolist(), "max_tokens": int(output)}
            lines.append({**body, "temperature": 0, "ignore_eos": True})
    lines = [lines[i] for i in rng.permutation(len(lines))]
    paths = [folder / f"{name}.jsonl" for name in names]
    for path in paths:
        with path.open("w", encoding="utf-8") as file:
            for number, body in enumerate(lines[:WARM_COUNT] if path.stem == WARM else lines):
                entry = {"custom_id": f"r-{number}", "method": "POST", "url": "/v1/completions"}
                salted = {**body, "cache_salt": path.stem}
                file.write(json.dumps({**entry, "body": salted}) + "\n")
    return paths


@asynccontextmanager
async def engine(config: Config, folder: Path) -> AsyncGenerator[Engine, None]:
    """The units of `config`, ready."""
    specs = local_specs(config)
    async with local_service(config, specs, ApiSettings(queues=QueueLimits(batch=2**20))) as local:
        yield Engine(local, config, folder)


async def measure(
    config: Config, folder: Path, jobs: Sequence[Path], alone_s: float, seed: int
) -> tuple[list[Ran], Ran, Streams, Streams]:
    """The orders' runs, the run beside streams, the streams alone and beside it."""
    async with engine(config, folder) as running:
        await running.run(jobs[0], "fcfs")
        runs = [
            await running.run(job, order)
            for job, order in zip(jobs[1:-1], ORDERS[: len(jobs) - 2], strict=True)
        ]
        alone = Streams(running.local.service, tuple(FAMILIES), VOCABULARY, seed)
        async with alone.open():
            await asyncio.sleep(alone_s)
        beside = Streams(running.local.service, tuple(FAMILIES), VOCABULARY, seed)
        async with beside.open():
            ran = await running.run(jobs[-1], "auto")
    return runs, ran, alone, beside


def speed(runs: Sequence[Ran], order: str) -> float:
    """Tokens/s, median of the runs in this order."""
    return median(each.tokens_per_s for each in runs if each.order == order)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the bench."""
    bench = Bench(make_parser(__doc__), argv)
    quick, seed = bench.options.quick, bench.options.seed
    count = QUICK_COUNT if quick else COUNT
    names = [WARM, *(f"run{i}" for i in range(2 if quick else len(ORDERS))), "beside"]
    with tempfile.TemporaryDirectory(prefix="mux-batch-") as name:
        folder = Path(name)
        file = write_config(folder / "two.yaml", build_models(folder), POLICY)
        jobs = write_jobs(folder, count, names, seed)
        config = load_config(Path(file))
        runs, ran, alone, beside = asyncio.run(
            measure(config, folder, jobs, 6.0 if quick else ALONE_S, seed)
        )
        killed = run_killed(jobs[-1], folder / "answers.jsonl", file, 2 if quick else 5, seed)
    ids = Counter(killed.custom_ids)
    errors, figures = ran.errors(), beside.figures()
    claims = [
        Claim("batch_tokens_per_s_over_fcfs", speed(runs, "auto") / speed(runs, "fcfs"), "x", 1.0),
        Claim("estimate_error_at_half", ran.error_at_half(), "", GOAL),
        Claim("results_lost", count - len(ids), "lines", 0),
        Claim("results_doubled", sum(ids.values()) - len(ids), "lines", 0),
    ]
    for name in ("ttft_s", "tpot_s"):
        claims.append(Claim(f"interactive_p99_{name}", figures[name]["p99"], "s", SLO[name[:4]]))
    bench.publish(
        claims,
        {
            "errors_from_half": errors,
            "ttft_s_beside": beside.ttft_s,
            "tpot_s_beside": beside.tpot_s,
            "estimates": ran.estimates,
        },
        runs=[_summary(each) for each in (*runs, ran)],
        estimate_error_from_half={"worst": max(errors), "median": median(errors)},
        interactive={"alone": alone.figures(), "beside": figures, "targets_s": SLO},
        num_kills=killed.num_kills,
    )


def _summary(ran: Ran) -> dict[str, Any]:
    found = asdict(ran)
    del found["estimates"]
    return {
        **found,
        "tokens_per_s": ran.tokens_per_s,
        "estimate_error_at_half": ran.error_at_half(),
    }


if __name__ == "__main__":
    main()
