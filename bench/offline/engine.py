"""Planned batch jobs against arrival order on the CPU engine, scaled down, with equal answers.

Random Llamas in fp32, one thread, run as `muxcluster batch run` runs a file; both sides have the
prefix cache, chunked prefill and the memory as the limit. *micro*: the micro-benchmarks of
`batchllm.py` an eighth as long (prefixes of 256, 128 and 32 tokens before 32, 128 and 256 of a
request's own, shared by 4 and by 16, 12 output tokens in the mean), in a KV pool of some twelve
requests; orders take turns, `auto` once each. *gsm8k*: 500 questions after one of four sets of two
worked examples, in every order; their answers must be the same. Seconds are from a job's first
request to its last answer. Answers that differ are excused, and counted apart, where each is a
greedy answer of Hugging Face's model in float64 with logits closer than 1e-4 taken either way.
--quick: a fifth of the requests, one turn. Each part within five minutes, with --rows and --part.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.pop(0)  # the script's folder, whose modules would hide others
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch

from bench.harness import Bench, Claim, make_parser
from bench.offline.answers.jobs import Answered, Machine, answer, few_shot_job, shaped_job
from bench.offline.answers.near_ties import differing, near_ties
from bench.offline.rows import Row, Rows
from bench.traces.batchmix import Kind
from muxcluster.demo.models import build_model

_VOCABULARY = 512
_KV_HEADS, _HEAD_DIM, _ITEMSIZE = 2, 64, 4
_LAYERS, _GSM_LAYERS = 4, 3
_SHAPES = ((256, 32), (128, 128), (32, 256))
_DEGREES, _OUTPUT, _REQUESTS, _TURNS = (4, 16), 12, 120, 3
_GSM_ORDERS = ("fcfs", "dfs", "random", "batchllm", "blend", "blend-groups")
_GSM_REQUESTS, _GSM_SETS, _GSM_OUTPUT = 500, (4, 2), 8
PARTS = ("micro", "gsm8k")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, compare, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--part", choices=PARTS, help="run this part alone")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="keep there what ran; go on")
    bench = Bench(parser, argv)
    options, divisor = bench.options, 5 if bench.options.quick else 1
    traces = None if options.part == "micro" else bench.data()
    torch.set_num_threads(1)
    rows = Rows(options.rows)
    micro: list[Row] = []
    gsm8k: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-offline-") as name:
        folder = Path(name)
        if options.part != "gsm8k":
            turns = 1 if options.quick else _TURNS
            micro = run_micro(folder, rows, _REQUESTS // divisor, turns, options.seed)
        if traces is not None:
            source = traces / "gsm8k/train.first3000.jsonl"
            gsm8k = run_gsm8k(folder, rows, source, _GSM_REQUESTS // divisor, options.seed)
    bench.publish(
        [*_micro_claims(micro), *_gsm8k_claims(gsm8k)],
        {"speedup": [row["ratios"] for row in micro]},
        threads=1,
        shapes=[_without_texts(row) for row in micro],
        gsm8k=[_without_texts(row) for row in gsm8k],
    )


def run_micro(folder: Path, rows: Rows, num_requests: int, turns: int, seed: int) -> list[Row]:
    """A row a shape and degree."""
    fields = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    model = build_model(folder / "shapes", "llama", num_hidden_layers=_LAYERS, **fields)
    machine = Machine(
        model, max(1600, 30 * num_requests), _bytes_of_token(_LAYERS), 1536, num_tokens=256
    )
    found = []
    for prefix, distinct in _SHAPES:
        for degree in _DEGREES:
            kind = Kind(1.0, degree, prefix, distinct, _OUTPUT)
            name = f"{prefix}/{distinct}, degree {degree}, {num_requests} requests x {turns}"
            row = rows.run(
                f"{name}, seed {seed}",
                partial(_shape, folder, machine, kind, (num_requests, turns, seed)),
            )
            print(_without_texts(row), flush=True)
            found.append(row)
    return found


def _shape(folder: Path, machine: Machine, kind: Kind, drawn: tuple[int, int, int]) -> Row:
    """drawn: requests, turns and seed. Who begins changes from turn to turn."""
    num_requests, turns, seed = drawn
    path = folder / "shape.jsonl"
    optimum = shaped_job(path, kind, num_requests, _VOCABULARY, seed)
    runs = [answer(machine, path, "auto")]
    ratios = []
    for turn in range(turns):
        orders = ("fcfs", "batchllm") if turn % 2 == 0 else ("batchllm", "fcfs")
        took = {order: answer(machine, path, order) for order in orders}
        ratios.append(took["fcfs"].running_s / took["batchllm"].running_s)
        runs += took.values()
    return {
        "prefix": kind.prefix,
        "distinct": kind.distinct,
        "degree": kind.degree,
        "optimum": round(optimum, 4),
        "speedup": round(median(ratios), 3),
        "ratios": ratios,
        "different": differing(runs),
        "near_ties": near_ties(machine.model, path, runs),
        "runs": [run.row() for run in runs],
    }


def run_gsm8k(folder: Path, rows: Rows, source: Path, num_requests: int, seed: int) -> list[Row]:
    """A row an order, then one that compares them all."""
    model = build_model(folder / "gsm8k", "llama", num_hidden_layers=_GSM_LAYERS)
    path = folder / "gsm8k.jsonl"
    few_shot_job(path, source, num_requests, _GSM_SETS, _GSM_OUTPUT, seed)
    machine = Machine(model, 6000, _bytes_of_token(_GSM_LAYERS), 2048, num_tokens=512)
    found = []
    for order in _GSM_ORDERS:
        name = f"gsm8k, {num_requests} requests, {order}, seed {seed}"
        row = rows.run(name, partial(_answered, machine, path, order))
        print(_without_texts(row), flush=True)
        found.append(row)
    fields = Answered.__dataclass_fields__
    runs = [Answered(**{name: row[name] for name in fields}) for row in found]
    compared = {
        "case": "gsm8k, compared",
        "num_requests": num_requests,
        "different": differing(runs),
        "near_ties": near_ties(model, path, runs),
    }
    return [*found, compared]


def _micro_claims(micro: Sequence[Row]) -> list[Claim]:
    if not micro:
        return []
    speedups = [row["speedup"] for row in micro]
    return [
        Claim("engine_speedup_over_prefix_cache_min", min(speedups), "x", 1.1),
        Claim("engine_speedup_over_prefix_cache_max", max(speedups), "x", 1.5),
        *_equality_claims("", micro),
    ]


def _gsm8k_claims(gsm8k: Sequence[Row]) -> list[Claim]:
    return _equality_claims("gsm8k_", gsm8k[-1:]) if gsm8k else []


def _equality_claims(prefix: str, rows: Sequence[Row]) -> list[Claim]:
    num_ties = sum(len(row["near_ties"]) for row in rows)
    num_wrong = sum(len(row["different"]) for row in rows) - num_ties
    return [
        Claim(f"{prefix}different_answers", num_wrong, "", 0),
        Claim(f"{prefix}near_ties", num_ties, ""),
    ]


def _answered(machine: Machine, path: Path, order: str) -> Row:
    return asdict(answer(machine, path, order))


def _without_texts(row: Mapping[str, Any]) -> Row:
    return {key: value for key, value in row.items() if key != "texts"}


def _bytes_of_token(num_layers: int) -> int:
    return num_layers * 2 * _KV_HEADS * _HEAD_DIM * _ITEMSIZE


if __name__ == "__main__":
    main()
