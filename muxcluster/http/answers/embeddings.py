"""Turns a call's vectors into the response of /v1/embeddings."""

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from muxcluster.core.errors import EngineFailure
from muxcluster.http.answers.responses import Deltas
from muxcluster.http.answers.usage import UsageTally
from muxcluster.http.answers.wire import Json
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.embedding import VectorForm
from muxcluster.http.calls.model_text import off_loop

MOST_INLINE = 1 << 16  # numbers that are written without holding up the event loop for long


async def embeddings(call: Call, deltas: Deltas, form: VectorForm) -> Json:
    """Return the response object. Raises as `vectors_of`."""
    vectors, usage = await vectors_of(call, deltas)
    work = partial(_data, vectors, form)
    return {
        "id": call.call_id,
        "object": "list",
        "data": await off_loop(work, num_numbers(call, form), MOST_INLINE),
        "model": call.model.served.name,
        "usage": usage,
    }


async def vectors_of(call: Call, deltas: Deltas) -> tuple[list[bytes], dict[str, object]]:
    """Return the vectors of the call's texts, as the engine computes them, and the usage.

    Raises what `deltas` raises, EngineFailure if a vector is missing.
    """
    found: dict[int, bytes] = {}
    usage = UsageTally(call)
    async with aclosing(deltas):
        async for delta in deltas:
            usage.add(delta)
            if delta.vector:
                found[delta.index] = delta.vector
    if len(found) < call.num_choices:
        raise EngineFailure("the engine ended a request without its vector")
    return [found[index] for index in range(call.num_choices)], usage.value()


def num_numbers(call: Call, form: VectorForm) -> int:
    """Return the numbers of all vectors of a call."""
    return call.num_choices * form.dimensions


def _data(vectors: Sequence[bytes], form: VectorForm) -> list[Json]:
    return [
        {"object": "embedding", "index": index, "embedding": form.write(vector)}
        for index, vector in enumerate(vectors)
    ]
