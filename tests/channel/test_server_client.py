"""Server and client over real sockets: streams, aborts, refusals, and either side's death."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from muxcluster.channel.client import UnitClient
from muxcluster.channel.codec import Submit, encode
from muxcluster.channel.curve import Door
from muxcluster.channel.server import UnitCalls, UnitServer
from muxcluster.core.directory import KeyPair, UnitAddress
from muxcluster.core.errors import (
    EngineFailure,
    InvalidValue,
    ModelNotFound,
    MoveRefused,
    NotReady,
    Overloaded,
)
from muxcluster.core.events import TokenDelta
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import UnitStats
from tests.channel.harness import (
    CLIENT_KEYS,
    PATIENCE_S,
    SHORT_S,
    STATS_S,
    Unit,
    collect,
    finished,
    request,
    run,
    tokens_of,
    until,
)


@pytest.fixture(params=["ipc", "tcp"])
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Unit]:
    endpoint = f"ipc://{tmp_path}/u" if request.param == "ipc" else "tcp://127.0.0.1:*"
    unit = Unit(endpoint)
    yield unit
    unit.server.close()


def test_many_streams_at_once_each_get_their_own_tokens(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        requests = [request(f"echo-{i}", num_tokens=i) for i in range(40)]
        streams = await asyncio.gather(*(collect(client, r) for r in requests))
        for i, deltas in enumerate(streams):
            assert tokens_of(deltas) == list(range(i))
            assert [delta.finished is not None for delta in deltas].count(True) == 1
            assert deltas[-1].finished == finished(f"echo-{i}").finished

    run(unit.address, scenario)
    assert unit.aborted == []


def test_two_clients_do_not_see_each_others_tokens(unit: Unit) -> None:
    async def scenario(first: UnitClient) -> None:
        second = UnitClient()
        await second.connect(unit.address, CLIENT_KEYS)
        tasks = [
            asyncio.create_task(collect(client, request(name)))
            for client, name in ((first, "a"), (second, "b"))
        ]
        await until(lambda: sorted(unit.submitted) == ["a", "b"])
        unit.server.send({"a": TokenDelta((1,)), "b": TokenDelta((2,))})
        unit.server.send({"a": finished("a"), "b": finished("b")})
        assert [tokens_of(await task) for task in tasks] == [[1], [2]]
        await second.close()

    run(unit.address, scenario)


def test_a_slow_reader_gets_merged_deltas(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        stream = client.generate(request("a"))
        reader = asyncio.ensure_future(anext(stream))
        await until(lambda: unit.submitted == ["a"])
        unit.server.send({"a": TokenDelta((0,))})
        assert await reader == TokenDelta((0,))
        for token in range(1, 500):
            unit.server.send({"a": TokenDelta((token,))})
        unit.server.send({"a": finished("a")})
        sent_before = unit.num_stats + 1
        await until(lambda: client.stats() is not None and client.stats().now_s > sent_before)
        end = finished("a").finished
        rest = [delta async for delta in stream]
        assert rest == [TokenDelta(tuple(range(1, 500)), finished=end)]

    run(unit.address, scenario)


def test_closing_a_stream_early_aborts_the_request(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        stream = client.generate(request("a"))
        reader = asyncio.ensure_future(anext(stream))
        await until(lambda: unit.submitted == ["a"])
        unit.server.send({"a": TokenDelta((1,))})
        assert await reader == TokenDelta((1,))
        await stream.aclose()
        await until(lambda: unit.aborted == ["a"])

    run(unit.address, scenario)


def test_cancelling_a_reader_aborts_the_request(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        reader = asyncio.create_task(collect(client, request("a")))
        await until(lambda: unit.submitted == ["a"])
        reader.cancel()
        await until(lambda: unit.aborted == ["a"])

    run(unit.address, scenario)


def test_an_ended_stream_is_not_aborted(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: UnitClient) -> None:
        sent: list[str] = []
        post = client._post
        monkeypatch.setattr(
            client, "_post", lambda message: sent.append(type(message).__name__) or post(message)
        )
        await collect(client, request("echo"))
        assert [name for name in sent if name != "Ping"] == ["Submit"]

    run(unit.address, scenario)


def test_refusals_are_raised_and_rejections_are_the_last_delta(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        with pytest.raises(Overloaded, match="full") as refusal:
            await collect(client, request("busy"))
        assert refusal.value.retry_after_s == 4
        (delta,) = await collect(client, request("bad"))
        assert delta.rejected is not None
        assert (delta.rejected.code, delta.rejected.message) == ("invalid_value", "no such thing")

    run(unit.address, scenario)


def test_one_client_cannot_use_an_id_twice_at_a_time(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        first = asyncio.create_task(collect(client, request("a")))
        await until(lambda: unit.submitted == ["a"])
        with pytest.raises(InvalidValue, match="in use"):
            await collect(client, request("a"))
        unit.server.send({"a": finished("a")})
        assert await first == [finished("a")]

    run(unit.address, scenario)


def test_stats_are_pushed_and_age(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        assert client.stats() is None
        assert client.stats_age_s() == float("inf")
        await until(lambda: client.stats() is not None)
        first = client.stats()
        assert first is not None
        await until(lambda: client.stats() != first)
        assert 0 <= client.stats_age_s() < PATIENCE_S

    run(unit.address, scenario)


def test_a_closed_clients_requests_are_aborted(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        reader = asyncio.create_task(collect(client, request("a")))
        await until(lambda: unit.submitted == ["a"])
        await client.close()
        with pytest.raises(NotReady) as loss:
            await reader
        assert loss.value.code == "replica_lost"
        await until(lambda: unit.aborted == ["a"])
        with pytest.raises(NotReady):
            await collect(client, request("b"))

    run(unit.address, scenario)


def test_a_silent_clients_requests_are_aborted_though_it_is_connected(tmp_path: Path) -> None:
    unit = Unit(f"ipc://{tmp_path}/u", SHORT_S)
    with zmq.Context() as context, context.socket(zmq.DEALER) as mute:
        mute.setsockopt(zmq.LINGER, 0)
        mute.connect(unit.address.endpoint)
        mute.send(encode(Submit(request("a"))))
        asyncio.run(until(lambda: unit.aborted == ["a"]))
        assert unit.submitted == ["a"]
    unit.server.close()


def test_pings_keep_an_idle_client_alive(tmp_path: Path) -> None:
    unit = Unit(f"ipc://{tmp_path}/u", SHORT_S)

    async def scenario(client: UnitClient) -> None:
        reader = asyncio.create_task(collect(client, request("a")))
        await until(lambda: unit.num_stats * STATS_S > 1.5 * SHORT_S)
        assert unit.aborted == []
        unit.server.send({"a": finished("a")})
        assert await reader == [finished("a")]

    run(unit.address, scenario, SHORT_S)
    unit.server.close()


def test_garbage_is_survived(unit: Unit, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(client: UnitClient) -> None:
        assert client._socket is not None
        client._socket.send(b"\xc1 garbage")
        assert tokens_of(await collect(client, request("echo"))) == [0, 1, 2]

    run(unit.address, scenario)
    assert "not a message of the channel" in caplog.text


def test_a_closed_server_fails_its_clients_at_once(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        reader = asyncio.create_task(collect(client, request("a")))
        await until(lambda: unit.submitted == ["a"])
        await asyncio.to_thread(unit.server.close)
        with pytest.raises(NotReady) as loss:
            await reader
        assert loss.value.code == "replica_lost"
        assert not unit.server.is_alive
        unit.server.send({"a": finished("a")})

    run(unit.address, scenario)


def test_a_silent_server_fails_its_clients(tmp_path: Path) -> None:
    async def scenario(client: UnitClient) -> None:
        for name in ("a", "b"):
            with pytest.raises(NotReady) as loss:
                await collect(client, request(name))
            assert loss.value.code == "replica_lost"

    with zmq.Context() as context, context.socket(zmq.ROUTER) as mute:
        mute.setsockopt(zmq.LINGER, 0)
        mute.bind(f"ipc://{tmp_path}/mute")
        run(UnitAddress("u", f"ipc://{tmp_path}/mute"), scenario, SHORT_S)


def test_a_client_recovers_when_the_server_is_back(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/u"
    first = Unit(endpoint)

    async def scenario(client: UnitClient) -> None:
        assert tokens_of(await collect(client, request("echo"))) == [0, 1, 2]
        await asyncio.to_thread(first.server.close)
        await until(lambda: client._is_lost)
        second = Unit(endpoint)
        await until(lambda: not client._is_lost)
        assert tokens_of(await collect(client, request("echo"))) == [0, 1, 2]
        await asyncio.to_thread(second.server.close)

    run(first.address, scenario)


def test_an_endpoint_that_cannot_be_bound_is_named() -> None:
    door = Door("ipc:///no/such/folder/u")
    server = UnitServer(door, UnitCalls(print, print, lambda: UnitStats("u", 0, 1, 1)))
    with pytest.raises(EngineFailure, match="/no/such/folder/u"):
        server.start()
    server.close()


def test_a_server_that_never_started_can_be_closed_twice() -> None:
    server = UnitServer(
        Door("ipc:///tmp/u"), UnitCalls(print, print, lambda: UnitStats("u", 0, 1, 1))
    )
    server.close()
    server.close()
    assert not server.is_alive


def serve_in_child(endpoint: str, pipe: "multiprocessing.connection.Connection") -> None:
    unit = Unit(endpoint)
    pipe.send(unit.address)
    pipe.recv()


def read_in_child(address: UnitAddress, keys: KeyPair) -> None:
    run(address, lambda client: collect(client, request("a")), keys=keys)


SPAWN = multiprocessing.get_context("spawn")


def test_a_killed_server_process_fails_its_clients(tmp_path: Path) -> None:
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=serve_in_child, args=(f"ipc://{tmp_path}/u", theirs))
    child.start()

    async def scenario(client: UnitClient) -> None:
        assert tokens_of(await collect(client, request("echo", 50))) == list(range(50))
        reader = asyncio.create_task(collect(client, request("a")))
        stats = client.stats()
        await until(lambda: client.stats() != stats)
        os.kill(child.pid or 0, signal.SIGKILL)
        with pytest.raises(NotReady) as loss:
            await reader
        assert loss.value.code == "replica_lost"

    try:
        run(ours.recv(), scenario)
    finally:
        child.kill()
        child.join()


def test_a_killed_client_process_has_its_requests_aborted(unit: Unit) -> None:
    child = SPAWN.Process(target=read_in_child, args=(unit.address, CLIENT_KEYS))
    child.start()
    try:
        asyncio.run(until(lambda: unit.submitted == ["a"]))
        assert unit.aborted == []
    finally:
        child.kill()
        child.join()
    asyncio.run(until(lambda: unit.aborted == ["a"]))


def test_an_order_for_weights_is_in_the_report_when_it_returns(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        await until(lambda: client.stats() is not None)
        for order in (WeightOrder.HOLD, WeightOrder.WAKE):
            await client.request_move("m", order)
            stats = client.stats()
            assert stats is not None and [each.order for each in stats.models] == [order]
        for model, error in (("fixed", MoveRefused), ("other", ModelNotFound)):
            with pytest.raises(error):
                await client.request_move(model, WeightOrder.PARK)

    run(unit.address, scenario)
    assert unit.orders == [WeightOrder.HOLD, WeightOrder.WAKE]


def test_an_order_to_a_unit_that_is_gone_fails(unit: Unit) -> None:
    async def scenario(client: UnitClient) -> None:
        await until(lambda: client.stats() is not None)
        await asyncio.to_thread(unit.server.close)
        with pytest.raises(NotReady) as lost:
            await client.request_move("m", WeightOrder.HOLD)
        assert lost.value.code == "replica_lost"

    run(unit.address, scenario)
