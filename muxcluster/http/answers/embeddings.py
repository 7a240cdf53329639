"""Turns a call's vectors into the response of /v1/embeddings."""

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
    """Return the response object. Raises what `deltas` raises, EngineFailure if a vector lacks."""
    vectors: dict[int, bytes] = {}
    usage = UsageTally(call)
    async with aclosing(deltas):
        async for delta in deltas:
            usage.add(delta)
            if delta.vector:
                vectors[delta.index] = delta.vector
    if len(vectors) < call.num_choices:
        raise EngineFailure("the engine ended a request without its vector")
    work = partial(_data, vectors, form)
    return {
        "id": call.call_id,
        "object": "list",
        "data": await off_loop(work, num_numbers(call, form), MOST_INLINE),
        "model": call.model.served.name,
        "usage": usage.value(),
    }


def num_numbers(call: Call, form: VectorForm) -> int:
    """Return the numbers of all vectors of a call."""
    return call.num_choices * form.dimensions


def _data(vectors: dict[int, bytes], form: VectorForm) -> list[Json]:
    return [
        {"object": "embedding", "index": index, "embedding": form.write(vectors[index])}
        for index in sorted(vectors)
    ]
