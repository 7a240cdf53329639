"""Many streams at once through `openai`'s client; what each says, and when, as lines of JSON.

Run on a host: `python -m tests.cluster_hosts.streams SPEC OUT`. SPEC is a JSON list of streams; OUT
gets a line an event: {"stream": its index, "at": time.monotonic(), "tokens": [...]}, and last, for
each stream, {"stream", "at", "reason": finish_reason, or null and "error": what was raised}.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from openai import AsyncOpenAI

TIMEOUT_S = 300.0


async def one(client: AsyncOpenAI, index: int, spec: dict[str, Any], out: TextIO) -> None:
    """Run stream `index`; greedy unless the spec has a temperature."""

    def write(**row: Any) -> None:
        out.write(json.dumps({"stream": index, "at": time.monotonic(), **row}) + "\n")
        out.flush()

    write(tokens=[])
    reason = None
    try:
        stream: Any = await client.completions.create(
            model=spec["model"],
            prompt=spec["prompt"],
            max_tokens=spec["max_tokens"],
            temperature=spec.get("temperature", 0.0),
            seed=spec["seed"],
            logprobs=1,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            for choice in chunk.choices:
                reason = choice.finish_reason or reason
                if choice.logprobs is not None and choice.logprobs.tokens:
                    write(tokens=choice.logprobs.tokens)
    except Exception as error:  # noqa: BLE001 - whatever the client raises, the stream ended so
        write(reason=None, error=f"{type(error).__name__}: {error}")
        return
    if reason is None:
        write(reason=None, error="the stream ended without a finish_reason")
        return
    write(reason=reason)


async def all_of(specs: list[dict[str, Any]], out: TextIO) -> None:
    """Run them side by side, each at its own ingress, without a retry."""
    urls = {spec["url"] for spec in specs}
    clients = {
        url: AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S)
        for url in urls
    }
    await asyncio.gather(
        *(one(clients[spec["url"]], index, spec, out) for index, spec in enumerate(specs))
    )
    for client in clients.values():
        await client.close()


def main() -> None:
    """Run the specs of argv[1], write to argv[2]."""
    with Path(sys.argv[2]).open("w", encoding="utf-8") as out:
        asyncio.run(all_of(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), out))


if __name__ == "__main__":
    main()
