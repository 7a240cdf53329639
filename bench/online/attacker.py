"""The attacking process of bench/attack.py: connections at a steady rate until stdin ends.

Arguments: `attack` or `harmless`, the server's port, connections a second, the seed. `harmless`
sends as many bytes on as many connections, held as long, as requests that are answered. Prints
"started", and at the end a JSON line with the answers by kind and status.
"""

import asyncio
import json
import random
import sys
import threading
from collections import Counter, deque

MOST_HELD = 2000  # connections that are left open; the oldest is closed for one more
PATIENCE_S = 10.0
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
DONE = GET + b"Connection: close\r\n\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"


def post(body: bytes) -> bytes:
    """A request with a body of JSON."""
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def padded(num_bytes: int) -> bytes:
    """A request of a model that does not exist, of so many bytes."""
    return post(json.dumps({"model": "none", "prompt": "x" * num_bytes}).encode())


# By name: what an attacker sends, what is as long and harmless, and whether both stay open.
KINDS: dict[str, tuple[bytes, bytes, bool]] = {
    "idle": (b"", GET + b"\r\n", True),
    "slow head": (GET, GET + b"\r\n", True),
    "slow body": (post(b"x" * 100)[:-50], GET + b"\r\n", True),
    "huge head": (GET + b"X: " + b"a" * 100_000, padded(100_000), False),
    "two lengths": (CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n" + DONE, DONE, False),
    "bad chunk": (CHUNKED + b"\r\n-1\r\nx\r\n0\r\n\r\n" + DONE, DONE, False),
    "deep JSON": (post(b"[" * 500_000), padded(500_000), False),
    "broad JSON": (post(b'{"prompt": [' + b"[]," * 400_000 + b"[]]}"), padded(1_200_000), False),
    "path": (DONE.replace(b"/health", b"/v1/../%2e%2e/metrics%00"), DONE, False),
}

Held = deque[asyncio.StreamWriter]


async def send(data: bytes, port: int, held: Held | None) -> str:
    """Send on a new connection; return the status of the answer, or why there is none."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            await writer.drain()
            if held is not None:
                held.append(writer)
                if len(held) > MOST_HELD:
                    held.popleft().close()
                return "held"
            line = await reader.readline()
            writer.close()
    except OSError as error:  # TimeoutError is one
        return type(error).__name__
    return line.split(b" ")[1].decode() if line.startswith(b"HTTP/1.1 ") else "closed"


async def run(is_attack: bool, port: int, per_s: float, seed: int) -> Counter[str]:
    """Send until stdin ends."""
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    chosen = random.Random(seed)
    counts: Counter[str] = Counter()
    held: Held = deque()
    tasks: set[asyncio.Task[None]] = set()

    async def one(name: str) -> None:
        attack, harmless, is_held = KINDS[name]
        data = attack if is_attack else harmless
        counts[f"{name}: {await send(data, port, held if is_held else None)}"] += 1

    print("started", flush=True)
    while not is_over.is_set():
        task = asyncio.create_task(one(chosen.choice(list(KINDS))))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(1.0 / per_s)
    await asyncio.gather(*tasks)
    for writer in held:
        writer.close()
    return counts


def main() -> None:
    """Run, and print what came back."""
    mode, port, per_s, seed = sys.argv[1:]
    counts = asyncio.run(run(mode == "attack", int(port), float(per_s), int(seed)))
    print(json.dumps(dict(sorted(counts.items()))), flush=True)


if __name__ == "__main__":
    main()
