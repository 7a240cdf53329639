"""Streams of clients while strangers attack the same port, beside as much harmless traffic.

A unit that sends ready-made tokens, 50 a second to each of 32 streams, behind the real ingress
(as `paced` in bench/http.py). Another process opens connections at a steady rate meanwhile:
attacks of the table in docs/operations/threat-model.md, or as many harmless requests with as many
bytes, held as long. Rounds of both take turns. Claims: streams that were not whole or not as
expected under attack; the 99th percentile of the time between two tokens under attack over that
beside harmless traffic.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness import ROOT, Bench, Claim, make_parser, percentiles
from bench.http import PACED_STEP_S, PROMPT, TEXT, make_config, server
from bench.online.fake_unit import Script
from muxcluster.loadgen.exchange import Target, request_bytes
from muxcluster.loadgen.load import Outcome, Pace, run_load
from muxcluster.text.tokenizer import Tokenizer

MODEL = "paced"
MODES = ("harmless", "attack")
NUM_STREAMS, NUM_TOKENS = 32, 100
GOAL_RATIO = 1.5


class Attacker:
    """The other process while it sends. counts: of its answers, once it has ended."""

    def __init__(self, mode: str, port: int, per_s: float, seed: int) -> None:
        script = str(ROOT / "bench" / "online" / "attacker.py")
        self._process = subprocess.Popen(
            (sys.executable, script, mode, str(port), str(per_s), str(seed)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.counts: dict[str, int] = {}

    def close(self) -> None:
        """End it."""
        rest, _ = self._process.communicate("")
        self.counts = json.loads(rest)


@contextmanager
def attacking(mode: str, port: int, per_s: float, seed: int) -> Iterator[Attacker]:
    attacker = Attacker(mode, port, per_s, seed)
    try:
        yield attacker
    finally:
        attacker.close()


def stream_all(url: str, num_streams: int) -> Outcome:
    """So many streams at once, to their ends."""
    target = Target.of(url)
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    fields |= {"stream": True, "stream_options": {"include_usage": True}}
    bodies = [
        json.dumps({**fields, "prompt": f"{PROMPT} {index}"}).encode()
        for index in range(num_streams)
    ]
    requests = [request_bytes(target, "/v1/completions", body) for body in bodies]
    return asyncio.run(
        run_load(target, requests, Pace(max_concurrency=num_streams, timeout_s=120.0))
    )


def num_lost(outcome: Outcome, text: str) -> int:
    """Streams that did not end, or said something else."""
    return sum(not answer.is_complete or answer.text != text for answer in outcome.answers)


def gaps_ms(outcome: Outcome) -> list[float]:
    """Times between two tokens of a stream."""
    return [
        1e3 * (after - before)
        for answer in outcome.answers
        for before, after in zip(answer.event_times_s, answer.event_times_s[1:], strict=False)
    ]


def measure(options: Any, folder: Path) -> tuple[dict[str, list[float]], Counter[str], Any]:
    """Gaps and lost streams by mode, and what the other process was answered."""
    gaps: dict[str, list[float]] = {mode: [] for mode in MODES}
    lost: Counter[str] = Counter()
    answers: dict[str, Counter[str]] = {mode: Counter() for mode in MODES}
    config = make_config(folder)
    tokenizer = Tokenizer.load(folder / "tiny")
    said = tokenizer.encode(TEXT, add_special_tokens=False)
    text = tokenizer.decode((said * (1 + NUM_TOKENS // len(said)))[:NUM_TOKENS])
    scripts = {MODEL: Script(tuple(said), step_s=PACED_STEP_S)}
    with server(config, scripts, "direct") as (url, _spec):
        port = urlsplit(url).port or 0
        stream_all(url, 4)  # the first connections are not measured
        for index in range(1 if options.quick else options.rounds):
            for mode in MODES if index % 2 == 0 else reversed(MODES):
                with attacking(mode, port, options.per_s, options.seed + index) as attacker:
                    outcome = stream_all(url, NUM_STREAMS)
                gaps[mode].extend(gaps_ms(outcome))
                lost[mode] += num_lost(outcome, text)
                answers[mode].update(attacker.counts)
                print(mode, percentiles(gaps_ms(outcome), 2), flush=True)
    return gaps, lost, answers


def main() -> None:
    """Measure, print a line per round, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="of each, in turn")
    parser.add_argument("--per-s", type=float, default=100.0, help="connections of the attacker")
    bench = Bench(parser)
    options = bench.options
    with tempfile.TemporaryDirectory(prefix="bench-attack-") as folder:
        gaps, lost, answers = measure(options, Path(folder))
    rows = {mode: percentiles(gaps[mode], 2) for mode in MODES}
    ratio = round(rows["attack"]["p99"] / rows["harmless"]["p99"], 3)
    bench.publish(
        [
            Claim("streams_lost", float(lost["attack"]), "streams", 0.0),
            Claim("p99_ratio_under_attack", ratio, "x", GOAL_RATIO),
        ],
        {f"gap_ms {mode}": sorted(gaps[mode])[:: max(1, len(gaps[mode]) // 500)] for mode in MODES},
        streams=NUM_STREAMS,
        connections_per_s=options.per_s,
        gap_ms=rows,
        streams_lost=dict(lost),
        answers={mode: dict(sorted(answers[mode].items())) for mode in MODES},
    )


if __name__ == "__main__":
    main()
