"""Which nodes can be reached: real ports that answer, refuse, or do not answer at all."""

import asyncio
import socket

from muxcluster.cluster.ray.nodes import MOST_MISSES, NodeProbe, RayNode


def _node(node_id: str, port: int, *, is_alive: bool = True) -> RayNode:
    return RayNode(node_id, node_id, "127.0.0.1", port, is_alive)


def test_a_node_is_lost_after_misses_in_a_row_and_back_with_the_first_answer() -> None:
    async def scenario() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        here, dead = _node("here", port), _node("dead", port, is_alive=False)
        reach = NodeProbe()
        assert await reach.probe([here, dead]) == {"here"}
        listener.close()  # refused from here on: its raylet is gone
        for _ in range(MOST_MISSES - 1):
            assert await reach.probe([here]) == {"here"}
        assert await reach.probe([here]) == set()
        with socket.create_server(("127.0.0.1", port)):
            assert await reach.probe([here]) == {"here"}

    asyncio.run(scenario())


def test_a_node_that_takes_no_connection_is_lost_too() -> None:
    async def scenario() -> None:
        with socket.socket() as full:
            # A queue of one that nobody empties: further connections get no answer, as over a cut.
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            fillers = [socket.socket() for _ in range(3)]
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            reach, node = NodeProbe(), _node("full", port)
            found = [await reach.probe([node]) for _ in range(MOST_MISSES)]
            assert found == [*([{"full"}] * (MOST_MISSES - 1)), set()]
            for filler in fillers:
                filler.close()

    asyncio.run(scenario())
