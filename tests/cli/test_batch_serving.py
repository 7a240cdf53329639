"""The plan of a server's batches: for the units that run, and never in the way of a job."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import yaml

from muxcluster.batch.plan.planner import FedPlanner, PlanRules
from muxcluster.batch.store.job import Batch, Order, Status
from muxcluster.batch.store.pending import Pending, PendingLines
from muxcluster.cluster.ingress.batch_planner import ServedSettings
from muxcluster.cluster.state.desired import Desired
from muxcluster.cluster.state.fitting import desired_of
from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of
from muxcluster.config.planning import plan_for
from muxcluster.core.batch_part import BatchPart, LinePlace
from muxcluster.core.errors import NotReady
from muxcluster.demo.models import build_model
from muxcluster.http.calls.kept_prompts import KeptPrompts
from muxcluster.http.calls.model_text import ModelTexts

BATCH = Batch("b", Order("me", "in", None), Status.IN_PROGRESS, {})


@pytest.fixture(scope="module")
def desired(tmp_path_factory: pytest.TempPathFactory) -> Desired:
    folder = tmp_path_factory.mktemp("one")
    build_model(folder / "tiny", "llama", seed=0)
    file = folder / "muxcluster.yaml"
    file.write_text(yaml.safe_dump({"models": [{"name": "tiny", "path": "tiny"}]}))
    config = load_config(file)
    nodes = nodes_of(config)
    return desired_of(config, plan_for(config, nodes), nodes)


@pytest.fixture(scope="module")
def twice(desired: Desired) -> Desired:
    """The same model in two units."""
    (unit,) = desired.plan.units
    units = (unit, unit.model_copy(update={"id": f"{unit.id}-too"}))
    return replace(desired, plan=desired.plan.model_copy(update={"units": units}))


def _job(count: int) -> tuple[list[Pending], list[bytes]]:
    """Lines of four families that share twenty tokens, in no order; the last is another model's."""
    rng = random.Random(1)
    heads = [[rng.randrange(10, 500) for _ in range(32)] for _ in range(4)]
    data = []
    for i in range(count):
        prompt = heads[rng.randrange(4)] + [rng.randrange(10, 500) for _ in range(8)]
        model = "gone" if i == count - 1 else "tiny"
        body = {"model": model, "prompt": prompt, "max_tokens": 8}
        fields = {"custom_id": f"{i}", "method": "POST", "url": "/v1/completions", "body": body}
        data.append(json.dumps(fields).encode())
    starts = [0, *accumulate(len(each) + 1 for each in data)]
    lines = [
        Pending(i, starts[i], len(each), json.loads(each)["body"]["model"], 1)
        for i, each in enumerate(data)
    ]
    return lines, data


class _Sink:
    """Keeps the parts that units get."""

    def __init__(self) -> None:
        self.parts: list[tuple[BatchPart, str]] = []

    def add_part(self, part: BatchPart, unit_id: str) -> None:
        self.parts.append((part, unit_id))

    def end_line(self, place: LinePlace) -> None:
        pass

    def end_part(self, part_id: str) -> None:
        pass


def _planned(
    folder: Path, ask: Callable[[], Awaitable[Desired | None]], models: Desired, count: int
) -> tuple[list[int], list[bytes], _Sink]:
    """Numbers of the lines in the order they are sent, the lines, and what units got."""
    lines, data = _job(count)
    file, sink = folder / "in.jsonl", _Sink()
    file.write_bytes(b"\n".join(data))

    async def plan() -> list[int]:
        rules = PlanRules("dfs", lenient=False, most_unplanned=8)
        kept = KeptPrompts()
        texts = ModelTexts.load(models.models)
        planner = FedPlanner(texts, ServedSettings(ask), sink, rules, kept)
        try:
            (plan,) = await planner.plan(BATCH, PendingLines.of(lines), file)
            order = []
            while len(plan):
                taken = plan.take()
                assert taken, "it waits for lines that nobody has begun"
                for line in taken:
                    found = kept.find(BATCH.batch_id, line.line)
                    assert found is not None or plan.place(line.line) is None
                    plan.started(line.line)
                    plan.ended(line.line, 8)
                    order.append(line.line)
            plan.close()
        finally:
            planner.close()
        assert kept.num_tokens == 0
        return order

    return asyncio.run(plan()), data, sink


def _num_switches(order: Sequence[int], data: Sequence[bytes]) -> int:
    """How often a line begins otherwise than the one before."""
    heads = [json.loads(data[line])["body"]["prompt"][:32] for line in order]
    return sum(before != after for before, after in zip(heads, heads[1:], strict=False))


def test_lines_that_share_a_prefix_come_together(desired: Desired, tmp_path: Path) -> None:
    async def ask() -> Desired | None:
        return desired

    order, data, sink = _planned(tmp_path, ask, desired, 120)
    assert sorted(order) == list(range(120))
    ((part, unit_id),) = sink.parts
    assert unit_id == desired.plan.units[0].id
    assert (len(part), part.model, part.order) == (119, "tiny", "dfs")
    assert np.isnan(part.known).all()
    # the line of another model has no plan and comes first
    assert order[0] == 119
    assert _num_switches(order[1:], data) < _num_switches(range(119), data) / 4


def test_a_job_is_divided_among_replicas_by_families(twice: Desired, tmp_path: Path) -> None:
    async def ask() -> Desired | None:
        return twice

    order, _, sink = _planned(tmp_path, ask, twice, 121)
    assert sorted(order) == list(range(121))
    assert len({unit_id for _, unit_id in sink.parts}) == 2
    sizes = [len(part) for part, _ in sink.parts]
    assert sum(sizes) == 120
    assert min(sizes) > 30
    # four families of 32 shared tokens, none in both units
    assert sum(int((part.tree["depth"] >= 32).sum()) for part, _ in sink.parts) <= 6


@pytest.mark.parametrize("answer", [None, NotReady("gone")])
def test_without_the_controller_a_job_runs_in_its_files_order(
    desired: Desired, tmp_path: Path, answer: Exception | None
) -> None:
    async def ask() -> Desired | None:
        if answer is not None:
            raise answer
        return None

    order, _, sink = _planned(tmp_path, ask, desired, 20)
    assert order == list(range(20))
    assert not sink.parts
