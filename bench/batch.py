"""Batch jobs of two models through HTTP and through `batch run`: their order, interactive streams
beside them, the estimate of their end, and what kill -9 costs.

Two tiny models (tests/cli/batches.py) on one CPU thread in mixed jobs under `packing: hybrid`, in a
KV pool that holds some forty prompts. A job has 2,000 requests in random order, 8 of a model each
sharing some 256 prompt tokens before 24 of their own, 8 output tokens. The orders `auto` and
`fcfs` take turns on the same engine, each job under a cache salt of its own; tokens/s count prompt
and output tokens from reading the file to the last answer, planning too. Then 64 interactive
streams (16 to 32 tokens, 16 out, 8 s pauses), alone and beside a job; their targets there, 1.25
times the p99 alone, go with each request. The same units then run behind a server
on Ray beside the first ones, which are idle: a job through HTTP, from its upload to its last
result, takes turns with `batch run`'s; and streams through HTTP alone take turns with the same
streams beside a job. The error of the estimate: of the time
that is left, when half of the lines have ended; `estimates` has all later moments, as a share of
the whole run. Then `muxcluster batch run` is killed five times at random. At last a job of
1,000,000 requests is handed to a batch service whose unit answers at once: how long until it is
checked, from then on to its first token, and the longest time for which the event loop stands still
until its second piece is planned. --quick: 240 requests, two runs, two kills, 4,000 requests for
that.
"""

import asyncio
import json
import socket
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
import yaml

from bench.batches.kills import run_killed
from bench.batches.long_job import run_long_job, write_long_job
from bench.batches.server import Served, Server, served
from bench.batches.streams import FACTOR, Streams
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
LONG_COUNT, QUICK_LONG_COUNT = 1_000_000, 4000
LONG_PATIENCE_S = 1800.0
# Jobs that nobody measures
WARM, HTTP_WARM, WARM_COUNT = "warm", "http-warm", 60
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
GOAL, SERVER_GOAL, TTFT_GOAL = 0.20, 0.95, 1.25
CHECK_GOAL_S, FIRST_TOKEN_GOAL_S, BLOCKED_GOAL_S = 60.0, 60.0, 0.05


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
        settings = {name: settings_of(self.config, name, None) for name in FAMILIES}
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
        await asyncio.to_thread(planner.close)
        assert planner.latest is not None
        chosen = dict(planner.latest.orders)
        if ended.progress is None or ended.batch.num_failed:
            raise RuntimeError(f"{ended.batch.num_failed} lines failed: {ended.batch}")
        use = ended.progress.use
        planned_s = ended.progress.started_s - start_s
        tokens = (use.prompt, use.cached, use.output)
        ran = Ran(order, chosen, seconds, planned_s, *tokens, estimates)
        print(
            f"{order} {chosen}: {ran.tokens_per_s:.0f} tokens/s in {seconds:.1f} s, "
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
            for number, body in enumerate(
                lines[:WARM_COUNT] if path.stem in (WARM, HTTP_WARM) else lines
            ):
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


@dataclass(frozen=True, slots=True)
class Measured:
    """All that one seed gave."""

    runs: list[Ran]  # the orders in turn
    ran: Ran  # beside streams
    alone: Streams
    beside: Streams
    local: list[Ran]  # turns with `over_http`
    over_http: list[Served]
    http_alone: Streams
    http_beside: Streams
    served_beside: list[Served]


async def measure(
    config: Config, file: str, folder: Path, jobs: "Jobs", alone_s: float, seed: int
) -> Measured:
    """The orders' runs, the run beside streams, then `batch run` and the server in turns."""
    async with engine(config, folder) as running:
        await running.run(jobs.warm, "fcfs")
        runs = [
            await running.run(job, order)
            for job, order in zip(jobs.orders, ORDERS[: len(jobs.orders)], strict=True)
        ]
        alone = Streams(running.local.service, tuple(FAMILIES), VOCABULARY, seed)
        async with alone.open():
            await asyncio.sleep(alone_s)
        beside = Streams(running.local.service, tuple(FAMILIES), VOCABULARY, seed)
        beside.slo = alone.targets()
        async with beside.open():
            ran = await running.run(jobs.beside, "auto")
        async with served(file, free_port()) as server:
            await server.run(jobs.http_warm)
            local, over_http = [], []
            for number, (here, there) in enumerate(zip(jobs.here, jobs.there, strict=True)):
                for is_server in (True, False) if number % 2 else (False, True):
                    if is_server:
                        over_http.append(await _told(server, there))
                    else:
                        local.append(await running.run(here, "auto"))
            found = await interactive(server, jobs.http_beside, alone_s, seed)
    return Measured(runs, ran, alone, beside, local, over_http, *found)


async def interactive(
    server: Server, jobs: Sequence[Path], alone_s: float, seed: int
) -> tuple[Streams, Streams, list[Served]]:
    """Streams alone and beside each of the jobs, in turns.

    Their targets are those of all streams alone so far.
    """
    alone = Streams(server, tuple(FAMILIES), VOCABULARY, seed)
    beside = Streams(server, tuple(FAMILIES), VOCABULARY, seed)
    done = []
    for job in jobs:
        async with alone.open():
            await asyncio.sleep(alone_s)
        beside.slo = alone.targets()
        async with beside.open():
            done.append(await _told(server, job))
    return alone, beside, done


async def _told(server: Server, job: Path) -> Served:
    found = await server.run(job)
    share = found.cached_tokens / found.prompt_tokens
    print(
        f"server: {found.tokens_per_s:.0f} tokens/s in {found.seconds:.1f} s, "
        f"{share:.0%} of the prompts cached",
        flush=True,
    )
    return found


@dataclass(frozen=True, slots=True)
class Jobs:
    """The same job in several files."""

    warm: Path
    orders: list[Path]
    beside: Path
    http_warm: Path
    here: list[Path]  # for `batch run`, in turn with `there`
    there: list[Path]
    http_beside: list[Path]

    @classmethod
    def write(cls, folder: Path, count: int, seed: int, *, is_quick: bool) -> "Jobs":
        num_orders, num_turns = (2, 1) if is_quick else (len(ORDERS), 4)
        names = [f"run{i}" for i in range(num_orders)]
        here, there, rest = (
            [f"{kind}{i}" for i in range(num_turns)] for kind in ("here", "there", "stream")
        )
        made = iter(
            write_jobs(
                folder,
                count,
                [WARM, *names, "beside", HTTP_WARM, *here, *there, *rest],
                seed,
            )
        )

        def some(number: int) -> list[Path]:
            return [next(made) for _ in range(number)]

        return cls(
            next(made),
            some(num_orders),
            next(made),
            next(made),
            some(num_turns),
            some(num_turns),
            some(num_turns),
        )


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def speed(runs: Sequence[Ran], order: str) -> float:
    """Tokens/s, median of the runs in this order."""
    return median(each.tokens_per_s for each in runs if each.order == order)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the bench."""
    bench = Bench(make_parser(__doc__), argv)
    quick, seed = bench.options.quick, bench.options.seed
    count = QUICK_COUNT if quick else COUNT
    with tempfile.TemporaryDirectory(prefix="mux-batch-") as name:
        folder = Path(name)
        file = write_config(folder / "two.yaml", build_models(folder), POLICY)
        keep_batches_in(Path(file), folder / "server")
        jobs = Jobs.write(folder, count, seed, is_quick=quick)
        config = load_config(Path(file))
        found = asyncio.run(measure(config, file, folder, jobs, 6.0 if quick else ALONE_S, seed))
        killed = run_killed(jobs.beside, folder / "answers.jsonl", file, 2 if quick else 5, seed)
        write_long_job(
            folder / "long.jsonl", list(FAMILIES), QUICK_LONG_COUNT if quick else LONG_COUNT, seed
        )
        long_job = asyncio.run(
            run_long_job(config, folder / "long.jsonl", folder / "long", LONG_PATIENCE_S)
        )
    runs, ran = found.runs, found.ran
    results = [Counter(killed.custom_ids)]
    results += [Counter(each.custom_ids) for each in (*found.over_http, *found.served_beside)]
    errors, figures = ran.errors(), found.beside.figures()
    http_alone, http_beside = found.http_alone.figures(), found.http_beside.figures()
    ttft = [each["ttft_s"]["p99"] for each in (http_beside, http_alone)]
    claims = [
        Claim("batch_tokens_per_s_over_fcfs", speed(runs, "auto") / speed(runs, "fcfs"), "x", 1.0),
        Claim(
            "server_over_batch_run",
            median(each.tokens_per_s for each in found.over_http)
            / median(each.tokens_per_s for each in found.local),
            "x",
            SERVER_GOAL,
        ),
        Claim("estimate_error_at_half", ran.error_at_half(), "", GOAL),
        Claim("results_lost", sum(count - len(each) for each in results), "lines", 0),
        Claim("results_doubled", sum(each.total() - len(each) for each in results), "lines", 0),
        Claim("interactive_ttft_p99_over_alone", ttft[0] / ttft[1], "x", TTFT_GOAL),
        Claim("long_job_checked_s", long_job.checked_s, "s", CHECK_GOAL_S),
        Claim("long_job_first_token_s", long_job.first_token_s, "s", FIRST_TOKEN_GOAL_S),
        Claim("event_loop_blocked_s", max(long_job.blocked_s.values()), "s", BLOCKED_GOAL_S),
    ]
    for name in ("ttft_s", "tpot_s"):
        target_s = FACTOR * found.alone.figures()[name]["p99"]
        claims.append(Claim(f"interactive_p99_{name}", figures[name]["p99"], "s", target_s))
    bench.publish(
        claims,
        {
            "errors_from_half": errors,
            "ttft_s_beside": found.beside.ttft_s,
            "tpot_s_beside": found.beside.tpot_s,
            "estimates": ran.estimates,
            "http_ttft_s_alone": found.http_alone.ttft_s,
            "http_ttft_s_beside": found.http_beside.ttft_s,
        },
        runs=[_summary(each) for each in (*runs, ran)],
        turns={
            "batch_run": [each.tokens_per_s for each in found.local],
            "server": [each.tokens_per_s for each in found.over_http],
            "server_beside_streams": [each.tokens_per_s for each in found.served_beside],
        },
        estimate_error_from_half={"worst": max(errors), "median": median(errors)},
        interactive={
            "alone": found.alone.figures(),
            "beside": figures,
            "targets_s": found.beside.slo,
        },
        interactive_over_http={
            "alone": http_alone,
            "beside": http_beside,
            "targets_s": found.http_beside.slo,
        },
        num_kills=killed.num_kills,
        long_job=asdict(long_job),
    )


def keep_batches_in(config: Path, folder: Path) -> None:
    """Let the server of this configuration keep its batches in `folder`."""
    content = yaml.safe_load(config.read_text())
    content["batch"] = {"directory": str(folder)}
    config.write_text(yaml.safe_dump(content))


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
