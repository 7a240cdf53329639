"""Planned batch jobs against arrival order on the CPU engine, scaled down; equal answers always.

Random Llamas in fp32, one thread, run as `muxcluster batch run` runs a file; both sides have the
prefix cache, chunked prefill and the memory as the limit. *shapes*: the micro-benchmarks of
`batchllm.py` an eighth as long (prefixes of 256, 128 and 32 tokens before 32, 128 and 256 of a
request's own, shared by 4 and by 16, 12 output tokens in the mean), in a KV pool of some twelve
requests; orders take turns, `auto` once each. *gsm8k*: 500 questions after one of four sets of two
worked examples, in every order; their answers must be the same. Seconds are from a job's first
request to its last answer. --quick: a fifth of the requests, one turn.
"""

import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.pop(0)  # the script's folder, whose modules would hide others
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch

from bench.harness import Bench, Claim, make_parser
from bench.offline.engine_jobs import Answered, Machine, answer, few_shot_job, shaped_job
from muxcluster.demo.models import build_model
from muxcluster.workload.batchmix import Kind

_VOCABULARY = 512
_KV_HEADS, _HEAD_DIM, _ITEMSIZE = 2, 64, 4
_LAYERS, _GSM_LAYERS = 4, 3
_SHAPES = ((256, 32), (128, 128), (32, 256))
_DEGREES, _OUTPUT, _REQUESTS, _TURNS = (4, 16), 12, 120, 3
_GSM_ORDERS = ("fcfs", "dfs", "random", "batchllm", "blend", "blend-groups")
_GSM_REQUESTS, _GSM_SETS, _GSM_OUTPUT = 500, (4, 2), 8


@dataclass(slots=True)
class Shape:
    """One of the shapes and what came of it. optimum: share of its prompt tokens that the tree
    shares. ratios: seconds in arrival order over those in BatchLLM's, turn by turn."""

    kind: Kind
    optimum: float
    runs: list[Answered] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    num_different: int = 0

    def row(self) -> dict[str, Any]:
        """For the record."""
        kind = self.kind
        return {
            "prefix": kind.prefix,
            "distinct": kind.distinct,
            "degree": kind.degree,
            "optimum": round(self.optimum, 4),
            "speedup": round(median(self.ratios), 3),
            "num_different": self.num_different,
            "runs": [run.row() for run in self.runs],
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, compare, publish."""
    bench = Bench(make_parser(__doc__), argv)
    options, parts = bench.options, 5 if bench.options.quick else 1
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bench-offline-") as name:
        folder = Path(name)
        turns = 1 if options.quick else _TURNS
        shapes = list(_shapes(folder, _REQUESTS // parts, turns, options.seed))
        rows = options.data / "gsm8k/train.first3000.jsonl"
        answered = _few_shot(folder, rows, _GSM_REQUESTS // parts, options.seed)
    speedups = [median(shape.ratios) for shape in shapes]
    bench.publish(
        [
            Claim("engine_speedup_over_prefix_cache_min", min(speedups), "x", 1.1),
            Claim("engine_speedup_over_prefix_cache_max", max(speedups), "x", 1.5),
            Claim("different_answers", sum(shape.num_different for shape in shapes), "", 0),
            Claim("gsm8k_different_answers", different(answered), "", 0),
        ],
        {"speedup": [shape.ratios for shape in shapes]},
        threads=1,
        shapes=[shape.row() for shape in shapes],
        gsm8k=[each.row() for each in answered],
    )


def different(runs: Sequence[Answered]) -> int:
    """Requests that not all runs answer alike."""
    first = runs[0].texts
    return sum(any(each.texts[key] != text for each in runs) for key, text in first.items())


def _shapes(folder: Path, num_requests: int, turns: int, seed: int) -> Iterator[Shape]:
    fields = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    model = build_model(folder / "shapes", "llama", num_hidden_layers=_LAYERS, **fields)
    machine = Machine(
        model, max(1600, 30 * num_requests), _bytes_of_token(_LAYERS), 1536, num_tokens=256
    )
    for prefix, distinct in _SHAPES:
        for degree in _DEGREES:
            kind = Kind(1.0, degree, prefix, distinct, _OUTPUT)
            path = folder / "shape.jsonl"
            shape = Shape(kind, shaped_job(path, kind, num_requests, _VOCABULARY, seed))
            for turn in range(turns):
                _take_turn(shape, machine, path, turn)
            shape.num_different = different(shape.runs)
            print(shape.row(), flush=True)
            yield shape


def _take_turn(shape: Shape, machine: Machine, path: Path, turn: int) -> None:
    """Who begins changes from turn to turn."""
    orders = ("fcfs", "batchllm") if turn % 2 == 0 else ("batchllm", "fcfs")
    runs = {order: answer(machine, path, order) for order in orders}
    shape.ratios.append(runs["fcfs"].running_s / runs["batchllm"].running_s)
    shape.runs += runs.values()
    if turn == 0:
        shape.runs.append(answer(machine, path, "auto"))


def _few_shot(folder: Path, rows: Path, num_requests: int, seed: int) -> list[Answered]:
    model = build_model(folder / "gsm8k", "llama", num_hidden_layers=_GSM_LAYERS)
    path = folder / "gsm8k.jsonl"
    few_shot_job(path, rows, num_requests, _GSM_SETS, _GSM_OUTPUT, seed)
    machine = Machine(model, 6000, _bytes_of_token(_GSM_LAYERS), 2048, num_tokens=512)
    return list(_answered(machine, path, _GSM_ORDERS))


def _answered(machine: Machine, path: Path, orders: Iterable[str]) -> Iterator[Answered]:
    for order in orders:
        found = answer(machine, path, order)
        print(found.row(), flush=True)
        yield found


def _bytes_of_token(num_layers: int) -> int:
    return num_layers * 2 * _KV_HEADS * _HEAD_DIM * _ITEMSIZE


if __name__ == "__main__":
    main()
