"""The client process of bench/http.py: loads from stdin, one JSON line each; figures on stdout.

It runs apart so that its processor time is known and the server's is not disturbed by it.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import uvloop

from muxcluster.loadgen.exchange import Target, request_bytes
from muxcluster.loadgen.load import Outcome, Pace, run_load


async def measure(case: dict[str, Any]) -> dict[str, Any]:
    """`num_streams` completions at once, each of `num_tokens` tokens, `num_rounds` times."""
    target = Target.of(case["url"])
    bodies = [_body(case, index) for index in range(case["num_streams"] * case["num_rounds"])]
    requests = [request_bytes(target, "/v1/completions", body) for body in bodies]
    outcome = await run_load(
        target, requests, Pace(max_concurrency=case["num_streams"], timeout_s=60.0)
    )
    return figures(outcome, case)


def _body(case: dict[str, Any], index: int) -> bytes:
    fields = {
        "model": case["model"],
        "prompt": f"{case['prompt']} {index}",
        "max_tokens": case["num_tokens"],
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(fields).encode()


def figures(outcome: Outcome, case: dict[str, Any]) -> dict[str, Any]:
    """What came back. Raises RuntimeError where any stream is not whole and as expected."""
    for answer in outcome.answers:
        if not answer.is_complete:
            raise RuntimeError(answer.error)
        if answer.num_output_tokens != case["num_tokens"]:
            raise RuntimeError(f"{answer.num_output_tokens} of {case['num_tokens']} tokens")
        if case["text"] is not None and answer.text != case["text"]:
            raise RuntimeError(f"wrong text: {answer.text[:80]!r}")
        if case["text"] is not None and len(answer.event_times_s) != case["num_tokens"]:
            raise RuntimeError(f"{len(answer.event_times_s)} events of {case['num_tokens']}")
    gaps = [
        after - before
        for answer in outcome.answers
        for before, after in zip(answer.event_times_s, answer.event_times_s[1:], strict=False)
    ]
    return {
        "ttft_ms": [1e3 * answer.ttft_s for answer in outcome.answers],
        "latency_ms": [1e3 * answer.latency_s for answer in outcome.answers],
        "gap_ms": sorted(1e3 * gap for gap in gaps)[:: max(1, len(gaps) // 1000)],
        "num_events": sum(len(answer.event_times_s) for answer in outcome.answers),
        "num_reads": sum(answer.num_reads for answer in outcome.answers),
        "duration_s": outcome.duration_s,
        "client_cpu_s": outcome.client_cpu_s,
    }


def main() -> None:
    """Answer each case as it comes, until stdin ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(uvloop.run(measure(json.loads(line)))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
