"""A job of a million lines in the process of a server's batch service: how long until it is checked
and has its first token, and for how long the event loop stands still meanwhile.

The service, its planning process, the lines' calls and the disk are those of a server; the unit is
none: it answers each line at once with one token, so that the process has all of its work and more
of it than a unit would leave it.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from muxcluster.batch.plan.planner import FedPlanner, PlanRules
from muxcluster.batch.plan.prediction import AUTO
from muxcluster.batch.plan.setting import settings_of
from muxcluster.batch.service.interface import BatchRequest
from muxcluster.batch.service.local import LocalBatchService
from muxcluster.batch.service.settings import BatchSettings
from muxcluster.batch.service.short_collections import keep_collections_short
from muxcluster.config.load import Config
from muxcluster.config.units import served_models
from muxcluster.core.batch_part import BatchPart, LinePlace
from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.request import Request
from muxcluster.core.served import ModelStats, ServedModel, UnitStats
from muxcluster.http.batch_lines import LineAnswerer
from muxcluster.http.calls.kept_prompts import KeptPrompts
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.metrics.requests import Metrics
from muxcluster.http.service import CompletionService
from muxcluster.http.settings import ApiSettings, QueueLimits
from muxcluster.sim.batch.setting import Setting

_UPLOAD_BYTES = 2**20
_PROBE_S = 0.002
_FAMILY = 8
_WORDS = ("engine", "model", "prompt", "token", "batch", "memory", "unit", "plan", "cache", "queue")


@dataclass(frozen=True, slots=True)
class LongJob:
    """What a job cost. blocked_s: by stage, the longest time for which the loop stood still."""

    num_lines: int
    checked_s: float  # from the order to the last line's check
    first_token_s: float  # from then on
    planned_s: float  # from then on to the second piece's plan, or the job's end
    blocked_s: Mapping[str, float]
    late_s: Mapping[str, float]  # by stage, 99th percentile of how late the loop is


def write_long_job(path: Path, models: Sequence[str], count: int, seed: int) -> None:
    """Write requests of some sixty tokens; eight each share the first half, in no order."""
    rng = random.Random(seed)

    def text(num_words: int) -> str:
        return " ".join(f"{rng.choice(_WORDS)}{rng.randrange(1000)}" for _ in range(num_words))

    heads = [text(6) for _ in range(-(-count // _FAMILY))]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            prompt = f"{heads[rng.randrange(len(heads))]} {text(6)}"
            body = {"model": models[number % len(models)], "prompt": prompt, "max_tokens": 8}
            entry = {"custom_id": f"r-{number}", "method": "POST", "url": "/v1/completions"}
            file.write(json.dumps({**entry, "body": body}) + "\n")


class _Unit:
    """A backend and a sink of parts that answers everything with one token at once."""

    def __init__(self, served: Sequence[ServedModel]) -> None:
        self._served = served
        self.num_parts = 0

    def models(self) -> Sequence[ServedModel]:
        return self._served

    def stats(self, model: str) -> UnitStats | None:
        return None

    def model_stats(self, model: str) -> Mapping[str, ModelStats]:
        return {}

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        await asyncio.sleep(0)
        yield TokenDelta((5,), finished=Finished(request.request_id, FinishReason.LENGTH))

    def add_part(self, part: BatchPart, unit_id: str) -> None:
        self.num_parts += 1

    def end_line(self, place: LinePlace) -> None:
        pass

    def end_part(self, part_id: str) -> None:
        pass


class _Probe:
    """Notes how late the event loop is, by stage."""

    def __init__(self) -> None:
        self.stage = "upload"
        self.late_s: dict[str, list[float]] = {}

    async def run(self) -> None:
        while True:
            start_s = time.monotonic()
            await asyncio.sleep(_PROBE_S)
            late_s = time.monotonic() - start_s - _PROBE_S
            self.late_s.setdefault(self.stage, []).append(max(0.0, late_s))


async def run_long_job(config: Config, job: Path, folder: Path, patience_s: float) -> LongJob:
    """Submit the job and watch the loop until two pieces are planned.

    Raises TimeoutError if that takes longer than `patience_s`.
    """
    served = served_models(config)
    unit, texts, kept = _Unit(served), ModelTexts.load(served), KeptPrompts(2**26)
    settings = ApiSettings(queues=QueueLimits(batch=2**20))
    completions = CompletionService(unit, texts, Metrics(), settings)
    units = {model.name: settings_of(config, model.name, None) for model in served}

    async def present() -> Mapping[str, Sequence[Setting]]:
        return units

    rules = PlanRules(AUTO, lenient=False, most_unplanned=128)
    planner = FedPlanner(texts, present, unit, rules, kept)
    answerer = LineAnswerer(completions, lenient=False, kept=kept)
    names = [model.name for model in served]
    service = LocalBatchService(
        folder, answerer, lambda: names, BatchSettings(str(folder)), planner
    )
    probe = _Probe()
    watching = asyncio.create_task(probe.run())
    collecting = asyncio.create_task(keep_collections_short(lambda: service.is_running))
    try:
        await service.start()
        async with asyncio.timeout(patience_s):
            return await _measured(service, job, unit, probe)
    finally:
        watching.cancel()
        collecting.cancel()
        await service.close()
        await asyncio.to_thread(planner.close)


async def _measured(service: LocalBatchService, job: Path, unit: _Unit, probe: _Probe) -> LongJob:
    upload_id = await service.begin("me")
    with job.open("rb") as file:
        while data := file.read(_UPLOAD_BYTES):
            await service.add(upload_id, data)
    file_id = (await service.finish(upload_id, job.name, "batch"))["id"]
    probe.stage, start_s = "check", time.monotonic()
    batch = await service.create("me", BatchRequest(file_id, "/v1/completions", "24h", {}))
    while batch["status"] == "validating":
        await asyncio.sleep(0.05)
        batch = await service.batch("me", batch["id"])
    probe.stage, checked_s = "plan", time.monotonic()
    while not batch["usage"]["output_tokens"]:
        await asyncio.sleep(0.05)
        batch = await service.batch("me", batch["id"])
    probe.stage, first_s = "run", time.monotonic()
    pieces = unit.num_parts
    while unit.num_parts == pieces and batch["status"] == "in_progress":
        await asyncio.sleep(0.05)
        batch = await service.batch("me", batch["id"])
    end_s, late_s = time.monotonic(), probe.late_s
    return LongJob(
        batch["request_counts"]["total"],
        checked_s - start_s,
        first_s - checked_s,
        end_s - checked_s,
        {stage: max(each) for stage, each in late_s.items()},
        {stage: sorted(each)[int(0.99 * len(each))] for stage, each in late_s.items()},
    )
