"""Responses of /v1/score and /v1/rerank: cosines of vectors, or what a cross-encoder computes."""

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from muxcluster.http.answers.embeddings import MOST_INLINE, vectors_of
from muxcluster.http.answers.responses import Deltas
from muxcluster.http.answers.wire import Json
from muxcluster.http.calls.call import Call
from muxcluster.http.calls.model_text import off_loop
from muxcluster.text.schemas import RerankBody, ScoreBody

_LEAST_LENGTH = 1e-12


async def scores(call: Call, deltas: Deltas, body: ScoreBody) -> Json:
    """Return the response of /v1/score, in the order of text_2. Raises as `vectors_of`."""
    vectors, usage = await vectors_of(call, deltas)
    found = await _scores(call, vectors, len(body.text_1))
    return {
        "id": call.call_id,
        "object": "list",
        "created": int(time.time()),
        "model": call.model.served.name,
        "data": [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(found.tolist())
        ],
        "usage": usage,
    }


async def reranked(call: Call, deltas: Deltas, body: RerankBody) -> Json:
    """Return the response of /v1/rerank, the nearest document first. Raises as `vectors_of`."""
    vectors, usage = await vectors_of(call, deltas)
    found = await _scores(call, vectors, 1)
    order = np.argsort(-found, kind="stable")[: body.top_n]
    results: list[Json] = [
        {"index": index, "relevance_score": float(found[index])} for index in order.tolist()
    ]
    if body.return_documents is not False:
        for result in results:
            result["document"] = {"text": body.documents[result["index"]]}
    return {
        "id": call.call_id,
        "model": call.model.served.name,
        "results": results,
        "usage": usage,
    }


async def _scores(call: Call, vectors: Sequence[bytes], num_first: int) -> NDArray[np.float64]:
    """Return the scores, float64. vectors: of a cross-encoder numbers of pairs, else vectors of
    `num_first` texts and of those that they are compared with."""
    scoring = call.model.served.scoring
    if scoring is None:
        return await _cosines(vectors[:num_first], vectors[num_first:])
    numbers = np.frombuffer(b"".join(vectors), dtype="<f4").astype(np.float64)
    # the sigmoid, without overflow
    return np.exp(-np.logaddexp(0.0, -numbers)) if scoring.is_sigmoid else numbers


async def _cosines(one: Sequence[bytes], others: Sequence[bytes]) -> NDArray[np.float64]:
    """Return float64 [len(others)]. one: a vector, or one for each of the others."""
    num_numbers = sum(map(len, others)) // np.dtype("<f4").itemsize
    return await off_loop(partial(_products, one, others), num_numbers, MOST_INLINE)


def _products(one: Sequence[bytes], others: Sequence[bytes]) -> NDArray[np.float64]:
    products: NDArray[np.float64] = (_unit(one) * _unit(others)).sum(-1)
    return products


def _unit(vectors: Sequence[bytes]) -> NDArray[np.float64]:
    """Return vectors, float32 as bytes, with length 1: float64 [len(vectors), size]."""
    wide = np.stack([np.frombuffer(each, dtype="<f4") for each in vectors]).astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    return np.asarray(wide / np.maximum(lengths, _LEAST_LENGTH))
