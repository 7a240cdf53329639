"""A unit dies in the middle of streams of the other APIs, and the client does not notice."""

import asyncio
from typing import Any

import httpx

from muxcluster.core.served import ServedModel
from tests.http.apis.calling import events_in
from tests.http.clusters import PATIENCE_S, Cluster, answer, run, until

NUM_TOKENS, FIRST_TOKENS = 60, 20
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        "messages": [{"role": "user", "content": "one"}],
        "max_tokens": NUM_TOKENS,
    },
    "/v1/responses": {"input": "two", "max_output_tokens": NUM_TOKENS},
}


async def streamed(cluster: Cluster, path: str) -> list[dict[str, Any]]:
    body = {"model": "tiny", "stream": True, **BODIES[path]}
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        found = await http.post(f"{cluster.url}{path}", json=body)
    assert found.status_code == 200, found.text
    return events_in(found.text)


def test_no_token_is_lost_or_repeated(served: ServedModel) -> None:
    async def work(cluster: Cluster) -> None:
        first = cluster.start("a", "tiny")
        cluster.serve(first, tiny=("a",))
        await cluster.ready()
        first.most_tokens = FIRST_TOKENS
        running = [asyncio.create_task(streamed(cluster, path)) for path in BODIES]
        await until(lambda: first.num_held == len(BODIES))
        first.close()
        second = cluster.start("b", "tiny")
        cluster.serve(second, tiny=("b",))
        messages, responses = await asyncio.gather(*running)
        prompts = [each.prompt_tokens.tolist() for each in second.requests]
        expected = {answer(prompt, NUM_TOKENS) for prompt in prompts}
        texts = [e["delta"]["text"] for e in messages if e["type"] == "content_block_delta"]
        deltas = [e["delta"] for e in responses if e["type"] == "response.output_text.delta"]
        assert len(prompts) == len(expected) == len(BODIES)
        assert {"".join(texts), "".join(deltas)} == expected
        assert all(len(each.output_tokens) == FIRST_TOKENS for each in second.requests)
        assert messages[-1]["type"] == "message_stop"
        assert responses[-1]["type"] == "response.incomplete"
        assert responses[-1]["response"]["usage"]["output_tokens"] == NUM_TOKENS

    run((served,), work)
