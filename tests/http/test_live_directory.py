"""The ingress follows its directory while streams run, and no token is lost or repeated."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import httpx
import openai
import pytest

from muxcluster.channel import curve
from muxcluster.channel.client import UnitClient
from muxcluster.cluster.ingress import controller_calls
from muxcluster.core.errors import EngineFailure
from muxcluster.core.served import ServedModel
from muxcluster.router.routing import CHUNK_TOKENS
from muxcluster.router.unit_link import LinkState, UnitLink
from muxcluster.text.tokenizer import Tokenizer
from tests.channel.relay import relayed
from tests.http.clusters import PATIENCE_S, Cluster, ScriptedUnit, answer, named, run, until

PROMPTS = [f"Stream {i} says" for i in range(8)]
NUM_TOKENS, FIRST_TOKENS = 150, 20
Says = Callable[[str, int], str]
Streams = list["asyncio.Task[str]"]


@pytest.fixture
def says(tokenizer: Tokenizer) -> Says:
    return lambda prompt, n: answer(tokenizer.encode(prompt, True), n)


async def assert_exact(running: Streams, says: Says) -> None:
    assert await asyncio.gather(*running) == [says(prompt, NUM_TOKENS) for prompt in PROMPTS]


async def under_way(cluster: Cluster, unit: ScriptedUnit, model: str) -> Streams:
    """Streams that have some output, and get no more of `unit` until it may go on."""
    unit.most_tokens = FIRST_TOKENS
    running = [asyncio.create_task(cluster.text(model, p, NUM_TOKENS)) for p in PROMPTS]
    await until(lambda: unit.num_held == len(PROMPTS))
    return running


def go_on(*units: ScriptedUnit) -> None:
    for unit in units:
        unit.most_tokens = math.inf


def is_idle(link: UnitLink) -> bool:
    """It knows that its unit has done all that was sent."""
    link.measure()
    return link.load.num_requests() == 0


async def one_of_two_busy(cluster: Cluster) -> tuple[ScriptedUnit, ScriptedUnit, Streams]:
    """Units a and b, of which a alone is routed to, and streams that are under way there."""
    a, b = cluster.start("a", "tiny"), cluster.start("b", "tiny")
    cluster.serve(a, tiny=("a",))
    await cluster.ready()
    return a, b, await under_way(cluster, a, "tiny")


def test_a_model_appears_and_disappears_under_the_streams_of_another(
    served: ServedModel, says: Says
) -> None:
    one, two = named(served, "one", "two")

    async def work(cluster: Cluster) -> None:
        a = cluster.start("a", "one", "two")
        cluster.serve(a, one=("a",))
        await cluster.ready()
        running = await under_way(cluster, a, "one")
        with pytest.raises(openai.NotFoundError):
            await cluster.text("two", "x")
        b = cluster.start("b", "two")
        cluster.serve(a, b, one=("a",), two=("b",))
        cluster.controller.change(models=(one, two))
        while len((await cluster.client.models.list()).data) < 2:
            assert await cluster.status("/ready") == 200
        assert await cluster.text("two", "x", 5) == says("x", 5)
        b.most_tokens = FIRST_TOKENS
        last = asyncio.create_task(cluster.text("two", "last"))
        await until(lambda: b.num_open == 1)
        # taken away: what runs there still ends
        cluster.controller.change(models=(one,), routes={"one": ("a",)}, draining={"b": PATIENCE_S})
        while len((await cluster.client.models.list()).data) > 1:
            await asyncio.sleep(0.01)
        with pytest.raises(openai.NotFoundError):
            await cluster.text("two", "x")
        go_on(a, b)
        assert await last == says("last", 100)
        await assert_exact(running, says)
        metrics = (await httpx.AsyncClient().get(f"{cluster.url}/metrics")).text
        assert 'generation_tokens_total{engine="0",model_name="two"} 105.0' in metrics

    run((one,), work)


def test_requests_of_an_adapter_go_to_the_units_of_its_base(
    served: ServedModel, says: Says
) -> None:
    (one,) = named(served, "one")

    async def work(cluster: Cluster) -> None:
        a = cluster.start("a", "one")
        cluster.serve(a, one=("a",))
        await cluster.ready()
        assert await cluster.text("lora", "x", 5) == says("x", 5)
        (request,) = a.requests
        assert (request.model, request.adapter) == ("one", "lora")
        cluster.controller.change(routes={"one": ()}, unplaced={"one": 30.0})
        while (await cluster.status("/ready")) == 200:
            await asyncio.sleep(0.01)
        with pytest.raises(openai.APIStatusError, match="no capacity is left for one"):
            await cluster.text("lora", "x")

    run((one, replace(one, name="lora", base="one")), work)


def test_a_moved_models_streams_stay_and_its_new_requests_go_to_the_new_unit(
    served: ServedModel, says: Says
) -> None:
    async def work(cluster: Cluster) -> None:
        a, b, running = await one_of_two_busy(cluster)
        cluster.serve(a, b, tiny=("b",))
        cluster.controller.change(draining={"a": PATIENCE_S})
        while not b.requests:
            assert await cluster.text("tiny", "new", 3) == says("new", 3)
        go_on(a)
        await assert_exact(running, says)
        assert all(request.sampling.max_tokens == 3 for request in b.requests)
        assert len({request.request_id for request in a.requests}) == len(a.requests)
        # the old one goes: nothing of it is left
        cluster.serve(b, tiny=("b",))
        cluster.controller.change(draining={})
        await until(lambda: [link.unit_id for link in cluster.ingress._unit_links.links()] == ["b"])
        assert await cluster.text("tiny", "end", 3) == says("end", 3)

    run((served,), work)


def test_after_the_drain_limit_streams_move_with_what_they_have(
    served: ServedModel, says: Says
) -> None:
    async def work(cluster: Cluster) -> None:
        a, b, running = await one_of_two_busy(cluster)
        cluster.serve(a, b, tiny=("b",))
        cluster.controller.change(draining={"a": 0.1})
        await assert_exact(running, says)
        assert len(b.requests) == len(PROMPTS)
        assert all(0 < len(request.output_tokens) < NUM_TOKENS for request in b.requests)
        assert all(len(r.prompt_tokens) == len(a.requests[0].prompt_tokens) for r in b.requests)
        await until(lambda: a.num_open == 0)
        assert len(a.aborted) == len(PROMPTS)

    run((served,), work)


def test_a_unit_that_leaves_the_directory_is_left_at_once(served: ServedModel, says: Says) -> None:
    async def work(cluster: Cluster) -> None:
        a, b, running = await one_of_two_busy(cluster)
        cluster.serve(b, tiny=("b",))
        await assert_exact(running, says)
        assert len(b.requests) == len(PROMPTS) == len(a.aborted)

    run((served,), work)


def test_without_a_place_only_that_model_is_refused_and_its_streams_wait(
    served: ServedModel, says: Says
) -> None:
    one, two = named(served, "one", "two")

    async def work(cluster: Cluster) -> None:
        a, b = cluster.start("a", "one"), cluster.start("b", "two")
        cluster.serve(a, b, one=("a",), two=("b",))
        await cluster.ready()
        running = await under_way(cluster, a, "one")
        a.close()
        cluster.serve(b, two=("b",))
        cluster.controller.change(unplaced={"one": 7.0})
        await until(lambda: cluster.ingress._unit_links.unplaced_s("one") is not None)
        with pytest.raises(openai.InternalServerError) as refused:
            await cluster.text("one", "x")
        assert refused.value.status_code == 503 and refused.value.code == "no_capacity"
        assert refused.value.response.headers["Retry-After"] == "7"
        assert await cluster.text("two", "x", 5) == says("x", 5)
        assert await cluster.status("/ready") == await cluster.status("/health") == 200
        assert not any(stream.done() for stream in running)
        again = cluster.start("c", "one")
        cluster.controller.change(unplaced={})
        cluster.serve(again, b, one=("c",), two=("b",))
        await assert_exact(running, says)
        assert len(again.requests) == len(PROMPTS)

    run((one, two), work)


def test_what_waits_for_a_place_that_never_comes_ends_in_time(served: ServedModel) -> None:
    async def work(cluster: Cluster) -> None:
        a = cluster.start("a", "tiny")
        cluster.serve(a, tiny=("a",))
        await cluster.ready()
        running = await under_way(cluster, a, "tiny")
        cluster.controller.change(units={}, routes={"tiny": ()})
        a.close()
        new = asyncio.create_task(cluster.text("tiny", "new"))
        for error in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(error, openai.APIError) and "came back within 0.5 s" in str(error)
        with pytest.raises(openai.InternalServerError) as lost:
            await new
        assert lost.value.status_code == 503 and lost.value.code == "replica_lost"
        assert await cluster.status("/ready") == 503

    run((served,), work, restart_limit_s=0.5)


def test_requests_spread_and_equal_beginnings_go_where_they_went(
    served: ServedModel, tokenizer: Tokenizer
) -> None:
    texts = ["".join(random.Random(seed).choices("bcdfghjk", k=190)) for seed in range(6)]
    assert all(len(tokenizer.encode(text, True)) > 2 * CHUNK_TOKENS for text in texts)

    async def work(cluster: Cluster) -> None:
        units = cluster.start("a", "tiny"), cluster.start("b", "tiny")
        cluster.serve(*units, tiny=("a", "b"))
        await cluster.ready()
        await until(lambda: all(link.is_open() for link in cluster.ingress._unit_links.links()))
        for unit in units:
            unit.most_tokens = 0
        asked = [asyncio.create_task(cluster.text("tiny", text, 10)) for text in texts]
        await until(lambda: sum(unit.num_open for unit in units) == len(texts))
        go_on(*units)
        await asyncio.gather(*asked)
        first = [{request.prompt_tokens.tobytes() for request in unit.requests} for unit in units]
        assert min(map(len, first)) >= 2
        for text in 2 * texts:
            await until(lambda: all(is_idle(link) for link in cluster.ingress._unit_links.links()))
            await cluster.text("tiny", text, 10)
        for unit, prompts in zip(units, first, strict=True):
            assert Counter(r.prompt_tokens.tobytes() for r in unit.requests) == dict.fromkeys(
                prompts, 3
            )

    run((served,), work)


def test_a_unit_that_hangs_is_left_though_its_connection_stays(
    served: ServedModel, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_calls, "UnitClient", partial(UnitClient, silence_s=2.5))

    async def work(cluster: Cluster) -> None:
        a, b = cluster.start("a", "tiny"), cluster.start("b", "tiny")
        cluster.serve(a, b, tiny=("a",))
        await cluster.ready()
        running = await under_way(cluster, a, "tiny")
        cluster.controller.change(routes={"tiny": ("a", "b")})
        await until(lambda: len(cluster.ingress._unit_links.of("tiny")) == 2)
        a.lives.clear()
        await assert_exact(running, says)
        assert len(b.requests) == len(PROMPTS)
        (link,) = [each for each in cluster.ingress._unit_links.links() if each.unit_id == "a"]
        assert link.state() is not LinkState.UNREACHABLE
        a.lives.set()
        await until(lambda: len(a.aborted) == len(PROMPTS))

    run((served,), work)


def test_a_cut_line_moves_its_streams_to_another_node(
    served: ServedModel, says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve, "HEARTBEAT_MS", 500)
    monkeypatch.setattr(curve, "UNREACHABLE_MS", 2500)

    async def work(cluster: Cluster) -> None:
        a, b = cluster.start("a", "tiny"), cluster.start("b", "tiny")
        with relayed(a.address.endpoint) as relay:
            far = replace(a.address, endpoint=f"tcp://127.0.0.1:{relay.port}")
            cluster.controller.change(units={"a": far}, routes={"tiny": ("a",)})
            await cluster.ready()
            running = await under_way(cluster, a, "tiny")
            cluster.controller.change(units={"a": far, "b": b.address}, routes={"tiny": ("a", "b")})
            await until(lambda: len(cluster.ingress._unit_links.of("tiny")) == 2)
            relay.cut()
            await assert_exact(running, says)
            assert len(b.requests) >= len(PROMPTS)
            await until(lambda: len(a.aborted) == len(PROMPTS))

    run((served,), work)


def test_without_a_controller_everything_goes_on(served: ServedModel, says: Says) -> None:
    async def work(cluster: Cluster) -> None:
        a = cluster.start("a", "tiny")
        cluster.serve(a, tiny=("a",))
        await cluster.ready()
        running = await under_way(cluster, a, "tiny")
        before, cluster.controller.now = cluster.controller.now, None
        assert await cluster.text("tiny", "new", 9) == says("new", 9)
        go_on(a)
        await assert_exact(running, says)
        assert await cluster.status("/ready") == 200
        assert await cluster.status("/status") == await cluster.status("/timeline") == 503
        cluster.controller.now = before
        b = cluster.start("b", "tiny")
        cluster.serve(b, tiny=("b",))
        while not b.requests:
            assert await cluster.text("tiny", "new", 3) == says("new", 3)

    run((served,), work)


def test_before_the_first_directory_clients_are_told_to_come_back(served: ServedModel) -> None:
    async def work(cluster: Cluster) -> None:
        with pytest.raises(openai.InternalServerError) as early:
            await cluster.text("tiny", "x")
        assert early.value.status_code == 503 and early.value.code == "model_loading"
        assert await cluster.status("/ready") == 503 and await cluster.status("/health") == 200
        cluster.serve(cluster.start("a", "tiny"), tiny=("a",))
        await cluster.ready()
        assert len(await cluster.text("tiny", "x", 4)) == 4

    run((served,), work)


def test_a_model_whose_files_are_missing_here_does_not_stop_the_others(
    served: ServedModel, says: Says, caplog: pytest.LogCaptureFixture
) -> None:
    lost = replace(served, name="lost", path="/no/such/model")

    async def work(cluster: Cluster) -> None:
        a = cluster.start("a", "tiny", "lost")
        cluster.serve(a, tiny=("a",), lost=("a",))
        await cluster.ready()
        assert await cluster.text("tiny", "x", 5) == says("x", 5)
        assert [model.id for model in (await cluster.client.models.list()).data] == ["tiny"]

    run((lost, served), work)
    assert "lost is not served: /no/such/model" in caplog.text


def test_an_ingress_that_follows_nothing_any_more_asks_to_be_replaced(served: ServedModel) -> None:
    async def work(cluster: Cluster) -> None:
        cluster.serve(cluster.start("a", "tiny"), tiny=("a",))
        await cluster.ready()
        cluster.ingress.check_health()

        async def broken(known: str | None) -> None:
            raise ValueError("a bug")

        cluster.controller.remote = broken  # type: ignore[method-assign]  # a fault is put in
        with pytest.raises(EngineFailure, match="no longer follows"):
            while True:
                cluster.ingress.check_health()
                await asyncio.sleep(0.01)

    run((served,), work)
