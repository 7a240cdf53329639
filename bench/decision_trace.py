"""Code of one scheduling decision: files, lines, functions, call depth.

A decision is one `next_jobs` and one `complete` of the real scheduler at steady state, traced line
by line: `adbs` with packing `priority`, and `adbs` with packing `hybrid` in short memory. Counted
are our own modules only. `decision_files` is what a reader has to open to follow the decision;
the smallest, the median and the largest of the traced decisions are given.
"""

import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness import ROOT, Bench, Claim, make_parser
from bench.scheduling.hybrid import HybridCase, HybridLoad, hybrid_spec
from bench.scheduling.load import Profiled, SteadyLoad, sharegpt_lengths, unit_spec
from bench.scheduling.timing import measure
from muxcluster.core.kvshape import KvShape

SHAPE = KvShape(num_layers=8, num_kv_heads=4, head_dim=128, itemsize=2)
NUM_MODELS = 4
NUM_REQUESTS = 128
_PACKAGES = (f"{ROOT / 'muxcluster'}/",)


@dataclass(slots=True)
class Trace:
    """What ran while `Tracer` was on."""

    files: set[str] = field(default_factory=set)
    lines: set[tuple[str, int]] = field(default_factory=set)
    functions: set[tuple[str, str]] = field(default_factory=set)
    depth: int = 0  # most frames of ours above the traced call

    @property
    def sizes(self) -> Mapping[str, int]:
        """Counts by what is counted."""
        return {
            "files": len(self.files),
            "lines": len(self.lines),
            "functions": len(self.functions),
            "depth": self.depth,
        }


class Tracer:
    """Traces our own modules during one call."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._depth = 0

    def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """`call(*arguments)`, traced."""
        sys.settrace(self._enter)
        try:
            return call(*arguments)
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGES):
            return None
        name = file[len(str(ROOT)) + 1 :]
        trace = self.trace
        trace.files.add(name)
        trace.functions.add((name, frame.f_code.co_qualname))
        self._depth += 1
        trace.depth = max(trace.depth, self._depth)

        def follow(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                trace.lines.add((name, frame.f_lineno))
            elif event == "return":
                self._depth -= 1
            return follow

        return follow


def traced(load: SteadyLoad, num_decisions: int) -> list[Trace]:
    """`num_decisions` decisions, one trace each, with untraced ones between them."""
    traces = []
    for _ in range(num_decisions):
        tracer = Tracer()
        jobs = tracer.run(load.scheduler.next_jobs, load.now)
        load.launch(jobs)
        job, result = load.finish()
        output = tracer.run(load.scheduler.complete, job, result, load.now)
        traces.append(tracer.trace)
        for request in load.replacements(output):
            load.scheduler.add(request, load.now)
        measure(load, 3)
    return traces


def loads(seed: int) -> dict[str, SteadyLoad]:
    """The two populations, at steady state."""
    rng = np.random.default_rng(seed)
    lengths = sharegpt_lengths(rng)
    plain = unit_spec(SHAPE, NUM_MODELS, NUM_REQUESTS, lengths.mean_live_tokens)
    case = HybridCase("bench", SHAPE, "adbs", NUM_MODELS, NUM_REQUESTS, lengths)
    return {
        "priority": SteadyLoad(plain, lengths, NUM_REQUESTS, rng),
        "hybrid": HybridLoad(hybrid_spec(case), lengths, NUM_REQUESTS, rng, Profiled()),
    }


def main() -> int:
    """Trace, print a table, publish."""
    bench = Bench(make_parser(__doc__))
    num_decisions = 40 if bench.options.quick else 400
    claims, rows, samples = [], [], {}
    print(f"{'packing':10} {'':10} {'files':>6} {'lines':>6} {'functions':>9} {'depth':>6}")
    for packing, load in loads(bench.options.seed).items():
        traces = traced(load, num_decisions)
        sizes = {name: [each.sizes[name] for each in traces] for name in traces[0].sizes}
        for label, pick in (("smallest", min), ("median", statistics.median), ("largest", max)):
            row = {name: pick(values) for name, values in sizes.items()}
            rows.append({"packing": packing, "decision": label, **row})
            print(
                f"{packing:10} {label:10} {row['files']:6g} {row['lines']:6g} "
                f"{row['functions']:9g} {row['depth']:6g}"
            )
        every = set().union(*(each.files for each in traces))
        rows.append({"packing": packing, "decision": "all together", "files": sorted(every)})
        claims.append(
            Claim(f"decision_files_{packing}", statistics.median(sizes["files"]), "files")
        )
        claims.append(Claim(f"decision_depth_{packing}", max(sizes["depth"]), "calls"))
        samples |= {f"{packing}_{name}": values for name, values in sizes.items()}
    bench.publish(claims, samples, decisions=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
