"""Streaming through the whole server (HTTP, ingress, zmq, unit): tokens/s and added TTFT.

Three units behind one ingress. `flood` and `paced` send ready-made tokens by the clock, so that
the framework alone is seen: `flood` more than it can take, `paced` 50 a second to each stream.
`real` is a tiny model in its unit's own process. Added TTFT is the client's time to the first
token, for the real engine less what the same load takes from the engine without HTTP, zmq and Ray
(a fake's own is nil). The client is a process of its own; each token must come as an SSE event of
its own, and all text is checked. Claims: tokens/s of 32 flooded streams; added TTFT of one paced
stream.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, in which this file would hide Python's own http
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import yaml

from bench.harness import ROOT, Bench, Claim, make_parser, percentiles
from bench.online.fake_unit import UNIT_CLASS, Script, write_scripts
from bench.processes import cpu_seconds
from muxcluster.cli.server.launch import free_address, prepare, url_of, wait_ready
from muxcluster.cluster.embedded import EmbeddedRay
from muxcluster.cluster.ingress.serve_app import Ingresses
from muxcluster.config.load import load_config
from muxcluster.core.inputs.web_url import HttpAddress
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.engine.unit.local import LocalUnitClient
from muxcluster.http.settings import ApiSettings
from muxcluster.text.tokenizer import Tokenizer

GOAL_TOKENS_PER_S = 10_000
STREAMS = (1, 32, 256)
TEXT = "The quick brown fox jumps over the lazy dog while seven wizards make toxic brew. "
PROMPT = TEXT * 4
NUM_CPUS = 2
PACED_STEP_S = 0.02
NUM_TOKENS = {"flood": 400, "paced": 50, "real": 40}


def make_config(folder: Path) -> Path:
    """A configuration of one tiny model that runs in its unit's process."""
    build_model(folder / "tiny", "llama", num_hidden_layers=2, hidden_size=96)
    model = {"name": "real", "path": str(folder / "tiny"), "prompt_tokens": 128, "max_seqs": 256}
    policy = {"partition": "none", "num_threads": 1, "prefix_caching": False}
    file = folder / "muxcluster.yaml"
    file.write_text(yaml.safe_dump({"models": [model], "policy": policy}))
    return file


@contextmanager
def server(config: Path, scripts: dict[str, Script], way: str) -> Iterator[tuple[str, UnitSpec]]:
    """Its URL and the real unit's specification. way: `direct`, or `proxy` for Serve's own."""
    desired = prepare(load_config(config)).desired
    (target,), (served,) = desired.targets, desired.models
    # Here a node is only a name: each unit gets one of its own, as if it had its own GPU.
    fakes = [
        replace(
            target,
            spec=replace(target.spec, models=(replace(target.spec.models[0], name=name),)),
            planned=target.planned.model_copy(update={"id": name, "node": name}),
        )
        for name in scripts
    ]
    models = (served, *(replace(served, name=name) for name in scripts))
    address = free_address(HttpAddress("127.0.0.1", 0))
    is_direct = way == "direct"
    cluster = EmbeddedRay(None if is_direct else address, NUM_CPUS, 0)
    try:
        write_scripts(cluster.socket_dir, scripts)
        edge = Ingresses(ApiSettings(), address if is_direct else None)
        cluster.run(replace(desired, targets=(target, *fakes), models=models), edge, UNIT_CLASS)
        wait_ready(url_of(address))
        yield url_of(address), target.spec
    finally:
        cluster.close()


class Client:
    """The client process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, str(ROOT / "bench" / "online" / "http_client.py")),
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
        # what it did afterwards (parsing) is no part of the load
        used["client"] = figures["client_cpu_s"]
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
    prompt = np.array(Tokenizer.load(spec.models[0].path).encode(PROMPT), dtype=np.int32)

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


@dataclass(frozen=True, slots=True)
class Load:
    """`num_rounds` times `num_streams` completions at once, of `num_tokens` tokens each."""

    engine: str
    num_streams: int
    num_rounds: int
    num_tokens: int

    def case(self, url: str, tokenizer: Tokenizer, said: list[int]) -> dict[str, Any]:
        """What the client is told. said: what the fakes say, again and again."""
        all_said = (said * (1 + self.num_tokens // len(said)))[: self.num_tokens]
        text = None if self.engine == "real" else tokenizer.decode(all_said)
        return {
            "url": url,
            "model": self.engine,
            "prompt": PROMPT,
            "text": text,
            "num_streams": self.num_streams,
            "num_rounds": self.num_rounds,
            "num_tokens": self.num_tokens,
        }

    def row(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Its entry in the record."""
        cores_s = NUM_CPUS * raw["duration_s"]
        shares = {name: round(seconds / cores_s, 3) for name, seconds in raw["cpu_s"].items()}
        return {
            "engine": self.engine,
            "streams": self.num_streams,
            "requests": self.num_streams * self.num_rounds,
            "tokens_per_request": self.num_tokens,
            "tokens_per_s": round(raw["num_events"] / raw["duration_s"], 1),
            "ttft_ms": percentiles(raw["ttft_ms"], 2),
            "gap_ms": percentiles(raw["gap_ms"], 2),
            "events_per_read": round(raw["num_events"] / raw["num_reads"], 2),
            "share_of_the_cores": shares,
        }


def loads(engines: Sequence[str], streams: Sequence[int], *, is_quick: bool) -> Iterator[Load]:
    """Each engine at each number of streams."""
    for engine in engines:
        for num in streams:
            rounds = max(1, min(20, 128 // num))
            num_tokens = NUM_TOKENS[engine]
            yield Load(engine, num, max(1, rounds // 2) if is_quick else rounds, num_tokens)


def claims_of(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """The two named in the issue, and added TTFT at the other numbers of streams."""
    claims = []
    for row in rows:
        num, added_ms = row["streams"], row["added_ttft_ms_p50"]
        if row["engine"] == "flood" and num == 32:
            rate = row["tokens_per_s"]
            claims.append(Claim("http_tokens_per_s_32", rate, "tokens/s", GOAL_TOKENS_PER_S))
        if row["engine"] == "paced":
            name = "added_ttft_ms_p50" if num == 1 else f"added_ttft_ms_p50_{num}"
            claims.append(Claim(name, added_ms, "ms"))
    return claims


def measure_all(
    options: Any, folder: Path
) -> tuple[list[dict[str, Any]], dict[str, list[float]], UnitSpec]:
    """Rows of the record, samples by name, and the real unit's specification."""
    rows: list[dict[str, Any]] = []
    samples: dict[str, list[float]] = {}
    config = make_config(folder)
    tokenizer = Tokenizer.load(folder / "tiny")
    said = tokenizer.encode(TEXT, add_special_tokens=False)
    fakes = {
        "flood": Script(tuple(said), tokens_per_s=options.offered),
        "paced": Script(tuple(said), step_s=PACED_STEP_S),
    }
    engines = [*fakes] if options.fake_only else [*fakes, "real"]
    with server(config, fakes, options.way) as (url, spec), closing(Client()) as client:
        for engine in engines:  # the first connection and the first job are not measured
            client.measure(Load(engine, 4, 1, 8).case(url, tokenizer, said))
        for load in loads(engines, options.streams, is_quick=options.quick):
            raw = client.measure(load.case(url, tokenizer, said))
            rows.append(load.row(raw))
            samples[f"{load.engine} ttft_ms at {load.num_streams}"] = raw["ttft_ms"]
            print(json.dumps(rows[-1]), flush=True)
    return rows, samples, spec


def main() -> None:
    """Measure, print a line per load, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--way", choices=("direct", "proxy"), default="direct", help="into Serve")
    parser.add_argument("--fake-only", action="store_true", help="leave the real engine out")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    parser.add_argument("--offered", type=float, default=24_000.0, help="flood: tokens/s in all")
    bench = Bench(parser)
    options = bench.options
    with tempfile.TemporaryDirectory(prefix="bench-http-") as folder:
        rows, samples, spec = measure_all(options, Path(folder))
        alone_ms: dict[int, list[float]] = {}
        if not options.fake_only:
            alone_ms = asyncio.run(engine_ttft_ms(spec, options.streams, NUM_TOKENS["real"]))
    for row in rows:
        alone = alone_ms[row["streams"]] if row["engine"] == "real" else [0.0]
        row["added_ttft_ms_p50"] = round(row["ttft_ms"]["p50"] - float(np.median(alone)), 2)
    offered = options.offered
    bench.publish(
        claims_of(rows), samples, way=options.way, offered_tokens_per_s=offered, rows=rows
    )


if __name__ == "__main__":
    main()
