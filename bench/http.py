"""Streaming through the whole server (HTTP, ingress, zmq, unit): tokens/s and added TTFT.

Two units behind one ingress: `fake` sends ready-made tokens by the clock, so that the framework
alone is seen; `real` is a tiny model in the unit's own process. Added TTFT is the client's time to
the first token, for the real engine less what the same load takes from the engine without HTTP,
zmq and Ray. The client is a process of its own; one SSE event per token, all text checked. The
claims: tokens/s at 32 streams of the fake engine; added TTFT of one stream of the fake engine.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, in which this file would hide Python's own http
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np
import yaml

from bench.fake_unit import Script, fake_units
from bench.harness import Bench, Claim, make_parser, percentiles
from bench.processes import cpu_seconds
from muxcluster.api.serve_app import Wiring, assemble
from muxcluster.api.settings import ApiSettings
from muxcluster.cli.launch import free_address, prepare, url_of, wait_ready
from muxcluster.cluster.embedded import EmbeddedRay, HttpAddress
from muxcluster.cluster.unit_actor import unit_deployment
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.engine.local import LocalUnitClient
from muxcluster.text.tokenizer import Tokenizer

GOAL_TOKENS_PER_S = 10_000
STREAMS = (1, 32, 256)
TEXT = "The quick brown fox jumps over the lazy dog while seven wizards make toxic brew. "
PROMPT = TEXT * 4
NUM_CPUS = 2.0


def make_config(folder: Path) -> Path:
    """A configuration of one tiny model that runs in its unit's process."""
    build_model(folder / "tiny", "llama", num_hidden_layers=2, hidden_size=96)
    model = {"name": "real", "path": str(folder / "tiny"), "prompt_tokens": 128, "max_seqs": 256}
    file = folder / "muxcluster.yaml"
    policy = {"partition": "none", "num_threads": 1, "prefix_caching": False}
    file.write_text(yaml.safe_dump({"models": [model], "policy": policy}))
    return file


@contextmanager
def server(config: Path, script: Script, way: str) -> Iterator[tuple[str, UnitSpec]]:
    """Its URL and the real unit's specification. way: `direct` or `proxy` (Serve's own)."""
    prepared = prepare(config)
    (spec,), (served,) = prepared.specs, prepared.models
    fake = replace(spec, unit_id="fake", models=(replace(spec.models[0], name="fake"),))
    make_fake = fake_units(script)

    def make_unit(wanted: UnitSpec, socket_dir: str | None) -> Any:
        return (make_fake if wanted.unit_id == "fake" else unit_deployment)(wanted, socket_dir)

    address = free_address(HttpAddress("127.0.0.1", 0))
    cluster = EmbeddedRay(None if way == "direct" else address, NUM_CPUS, 0)
    try:
        listen = address if way == "direct" else None
        wiring = Wiring(cluster.socket_dir, listen, make_unit)
        models = (served, replace(served, name="fake"))
        cluster.deploy(assemble((spec, fake), models, ApiSettings(), None, wiring))
        wait_ready(url_of(address))
        yield url_of(address), spec
    finally:
        cluster.close()


class Client:
    """The client process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, str(ROOT / "bench" / "http_client.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def measure(self, case: dict[str, Any]) -> dict[str, Any]:
        """The figures of one load, with the processor time that each process took."""
        assert self._process.stdin is not None and self._process.stdout is not None
        before = cpu_seconds(os.getpid())
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the client failed: its traceback is above")
        figures: dict[str, Any] = json.loads(line)
        after = cpu_seconds(os.getpid())
        used = {name: after[name] - before.get(name, 0.0) for name in after}
        return {**figures, "cpu_s": used}

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


async def engine_ttft_ms(
    spec: UnitSpec, streams: Sequence[int], num_tokens: int
) -> dict[int, list[float]]:
    """TTFT of the same load from the engine alone, in this process, by number of streams."""
    client = LocalUnitClient(spec)
    await client.start()
    tokenizer = Tokenizer.load(spec.models[0].path)
    prompt = np.array(tokenizer.encode(PROMPT), dtype=np.int32)

    async def one(name: str) -> float:
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        start_s, first_s = time.perf_counter(), None
        async for delta in client.generate(Request(name, "real", prompt, sampling)):
            if delta.tokens and first_s is None:
                first_s = time.perf_counter()
        assert first_s is not None
        return 1e3 * (first_s - start_s)

    try:
        await one("warm-up")
        return {
            num: await asyncio.gather(*(one(f"{num}-{index}") for index in range(num)))
            for num in streams
        }
    finally:
        await client.close()


def figures_of(engine: str, num_streams: int, raw: dict[str, Any]) -> dict[str, Any]:
    """One row of the record."""
    cpu_s, wall_s = raw["cpu_s"], raw["duration_s"]
    shares = {name: round(seconds / (NUM_CPUS * wall_s), 3) for name, seconds in cpu_s.items()}
    return {
        "engine": engine,
        "streams": num_streams,
        "tokens": raw["num_events"],
        "tokens_per_s": round(raw["num_events"] / wall_s, 1),
        "ttft_ms": percentiles(raw["ttft_ms"], 2),
        "gap_ms": percentiles(raw["gap_ms"], 2),
        "events_per_read": round(raw["num_events"] / raw["num_reads"], 2),
        "share_of_the_cores": {
            **shares,
            "client_during_load": round(raw["client_cpu_s"] / (NUM_CPUS * wall_s), 3),
        },
    }


def main() -> None:
    """Measure, print a table, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--way", choices=("direct", "proxy"), default="direct", help="into Serve")
    parser.add_argument("--fake-only", action="store_true", help="leave the real engine out")
    parser.add_argument("--rounds", type=int, default=4, help="loads a number of streams")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    parser.add_argument("--offered", type=float, default=24_000.0, help="fake engine's tokens/s")
    bench = Bench(parser)
    options = bench.options
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = str(ROOT)  # Ray's workers import the fake unit
    num_tokens = 200 if options.quick else 400
    rows, samples, engine_ms = [], {}, {}
    with tempfile.TemporaryDirectory(prefix="bench-http-") as folder:
        config = make_config(Path(folder))
        tokenizer = Tokenizer.load(Path(folder) / "tiny")
        said = tokenizer.encode(TEXT, add_special_tokens=False)
        script = Script(tuple(said), options.offered)
        engines = ["fake"] if options.fake_only else ["fake", "real"]
        with server(config, script, options.way) as (url, spec):
            client = Client()
            try:
                for engine in engines:
                    case = {"url": url, "model": engine, "prompt": PROMPT, "num_rounds": 1}
                    client.measure({**case, "text": None, "num_streams": 4, "num_tokens": 8})
                    for num in options.streams:
                        length = num_tokens if engine == "fake" else num_tokens // 10
                        length = max(16, length * min(1, 64 // num)) if num <= 64 else length // 4
                        said_all = (said * (1 + length // len(said)))[:length]
                        text = tokenizer.decode(said_all) if engine == "fake" else None
                        rounds = 20 if num == 1 else options.rounds
                        wanted = {"num_streams": num, "num_tokens": length, "num_rounds": rounds}
                        raw = client.measure({**case, "text": text, **wanted})
                        rows.append(figures_of(engine, num, raw))
                        samples[f"{engine} ttft_ms at {num}"] = raw["ttft_ms"]
                        print(json.dumps(rows[-1]), flush=True)
            finally:
                client.close()
        if not options.fake_only:
            engine_ms = asyncio.run(engine_ttft_ms(spec, options.streams, num_tokens // 10))
    for row in rows:
        alone = engine_ms.get(row["streams"]) if row["engine"] == "real" else [0.0]
        row["added_ttft_ms_p50"] = round(row["ttft_ms"]["p50"] - float(np.median(alone)), 2)
    fake = {row["streams"]: row for row in rows if row["engine"] == "fake"}
    claims = []
    if 32 in fake:
        rate = fake[32]["tokens_per_s"]
        claims.append(Claim("http_tokens_per_s_32", rate, "tokens/s", GOAL_TOKENS_PER_S))
    if 1 in fake:
        claims.append(Claim("added_ttft_ms_p50", fake[1]["added_ttft_ms_p50"], "ms"))
    bench.publish(claims, samples, way=options.way, offered_tokens_per_s=options.offered, rows=rows)


if __name__ == "__main__":
    main()
