"""The plan of a server's batches: for the units that run, and never in the way of a job."""

import asyncio
import contextlib
import json
import random
from collections.abc import Sequence

import pytest
import yaml

from muxcluster.batch.store.job import Batch, Order, Status
from muxcluster.batch.store.store import Pending
from muxcluster.cluster.ingress import batch_planner as serving
from muxcluster.cluster.ingress.batch_planner import OrderedLines, ServerPlanner
from muxcluster.cluster.state.desired import Desired
from muxcluster.cluster.state.fitting import desired_of
from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of
from muxcluster.config.planning import plan_for
from muxcluster.core.errors import NotReady
from muxcluster.demo.models import build_model
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
    lines = [
        Pending(i, 0, len(each), json.loads(each)["body"]["model"], 1)
        for i, each in enumerate(data)
    ]
    return lines, data


def _planned(
    models: Desired, answer: Desired | Exception | None, count: int
) -> tuple[list[int], list[bytes]]:
    """Numbers of the lines in the order they may start, and the lines."""
    lines, data = _job(count)

    async def ask() -> Desired | None:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def plan() -> Sequence[int]:
        planner = ServerPlanner(ModelTexts.load(models.models), ask, 64, lenient=False)
        plans = await planner.plan(BATCH, lines, lambda line: data[line.line])
        order = []
        for each in plans:
            while len(each):
                taken = each.take()
                assert taken, "it waits for lines that nobody has begun"
                for line in taken:
                    each.started(line.line)
                    each.ended(line.line, 8)
                    order.append(line.line)
            each.close()
        return order

    return list(asyncio.run(plan())), data


def _num_switches(order: Sequence[int], data: Sequence[bytes]) -> int:
    """How often a line begins otherwise than the one before."""
    heads = [json.loads(data[line])["body"]["prompt"][:32] for line in order]
    return sum(before != after for before, after in zip(heads, heads[1:], strict=False))


def test_lines_that_share_a_prefix_come_together(
    desired: Desired, monkeypatch: pytest.MonkeyPatch
) -> None:
    # which order is the fastest depends on the machine
    monkeypatch.setattr(serving, "AUTO", "dfs")
    order, data = _planned(desired, desired, 120)
    assert sorted(order) == list(range(120))
    assert _num_switches(order, data) < _num_switches(range(120), data) / 4


@pytest.mark.parametrize("answer", [None, NotReady("gone")])
def test_without_the_controller_a_job_runs_in_its_files_order(
    desired: Desired, answer: Exception | None
) -> None:
    order, _ = _planned(desired, answer, 20)
    assert order == list(range(20))


def test_a_job_too_long_to_plan(desired: Desired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_LINES", 10)
    order, _ = _planned(desired, desired, 20)
    assert order == list(range(20))


def test_another_plan_of_the_units_gives_the_rest_another_order(
    desired: Desired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PERIOD_S", 0.001)
    monkeypatch.setattr(serving, "AUTO", "dfs")
    lines, data = _job(100)
    lines = lines[:-1]
    answers: list[Desired | None] = [None]

    async def ask() -> Desired | None:
        return answers[-1]

    async def run() -> list[int]:
        texts = ModelTexts.load(desired.models)
        planner = ServerPlanner(texts, ask, 8, lenient=False)
        (plan,) = await planner.plan(BATCH, lines, lambda line: data[line.line])
        order = [line.line for line in plan.take()]
        assert order == list(range(8))
        assert not plan.take(), "more than may be under way"
        answers.append(desired)
        assert isinstance(plan, OrderedLines)
        before = plan.left
        while plan.left == before:
            await asyncio.sleep(0.001)
        while len(plan):
            plan.ended(order[-1], 8)
            order += [line.line for line in plan.take()]
        plan.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*planner._watches), 60)
        assert not planner._watches, "it follows a batch that has ended"
        return order

    order = asyncio.run(run())
    assert sorted(order) == list(range(99))
    assert _num_switches(order[8:], data) < _num_switches(range(8, 99), data) / 4
