"""Four small models on the same cores: requests in time against a separate engine for each model.

The models are Llamas of the shape of bench/serving.py (56.4 million parameters each, random weights
of their own, fp32). Requests arrive at random (Poisson); the n-th model has 1/n of the first one's
(Zipf). Prompts have 32 to 128 random tokens, answers 16 to 112. An answer is in time whose first
token came within 0.5 s and whose others took 0.1 s each in the mean. Ours is one unit of all
models, as `muxcluster serve` starts it, with one KV pool. With `--openvino PYTHON`, the path of a
Python that has openvino-genai, its continuous batching serves the same requests in three ways: a
process a model on all cores, a process a model on one thread, and one process whose pipelines take
steps in turn. Each of its models has a quarter of our pool. Nobody pays for HTTP. All sides answer
the same requests, one side after another, in an order that turns with every round.

Claims: answers in time, of all rates together, over the best other side's; output tokens/s until
the last answer at the highest rate over the best other side's; requests that were not answered
whole.
"""

import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from bench.harness import Bench, Claim, make_parser, percentiles
from bench.serving import SHAPE, check_openvino
from bench.several.asks import TPOT_S, TTFT_S, WARM_UP_S, Answer, Ask, zipf_asks
from bench.several.players import Side, in_turn, one_unit
from muxcluster.demo.models import build_model

NUM_MODELS = 4
_KV_GB = 0.25
# 8 layers of keys and values of 4 heads of 64 numbers of 4 bytes
_KV_BYTES_PER_TOKEN = 8 * 2 * 4 * 64 * 4
_GOAL = 1.5
_OURS = "muxcluster"


def make_models(folder: Path) -> dict[str, Path]:
    """The models' directories by name, the most popular one first."""
    names = [f"llama-{letter}" for letter in "abcd"[:NUM_MODELS]]
    return {
        name: build_model(folder / name, "llama", seed=seed, **SHAPE)
        for seed, name in enumerate(names)
    }


def write_config(folder: Path, models: Mapping[str, Path], rate: float) -> Path:
    """The configuration of one unit of all models. rate: that all have together."""
    total = sum(1 / rank for rank in range(1, len(models) + 1))
    entries = [
        {
            "name": name,
            "path": str(path),
            "dtype": "float32",
            "max_seqs": 64,
            "max_model_len": 256,
            "rate": round(rate / rank / total, 3),
            "prompt_tokens": 80,
            "output_tokens": 64,
            "slo": {"ttft": TTFT_S, "tpot": TPOT_S},
        }
        for rank, (name, path) in enumerate(models.items(), 1)
    ]
    config = folder / "several.yaml"
    config.write_text(yaml.safe_dump({"models": entries, "policy": {"kv_gb": _KV_GB}}))
    return config


def openvino_sides(python: str, models: Mapping[str, Path]) -> Iterator[Side]:
    """OpenVINO's three ways, not yet loaded."""
    kv_tokens = int(_KV_GB * 2**30 / _KV_BYTES_PER_TOKEN / len(models))
    paths = {name: str(path) for name, path in models.items()}
    together = [paths]
    apart = [{name: path} for name, path in paths.items()]
    for name, parts, threads in (
        ("openvino", apart, 0),
        ("openvino_one_thread", apart, 1),
        ("openvino_one_process", together, 0),
    ):
        tasks = [{"models": part, "kv_tokens": kv_tokens, "threads": threads} for part in parts]
        yield Side(name, [("openvino_pipelines.py", python, task) for task in tasks])


def row_of(rate: float, asks: Sequence[Ask], answers: Sequence[Answer]) -> dict[str, Any]:
    """What the record says of one side's play."""
    pairs = list(zip(asks, answers, strict=True))
    whole = [(ask, answer) for ask, answer in pairs if answer.num_tokens == ask.num_tokens]
    end_s = max(answer.last_s for answer in answers)
    tpots = [
        1e3 * (answer.last_s - answer.first_s) / (answer.num_tokens - 1) for _, answer in whole
    ]
    return {
        "rate": rate,
        "requests": len(asks),
        "whole": len(whole),
        "in_time": sum(answer.is_in_time(ask) for ask, answer in pairs),
        "tokens_per_s": round(sum(answer.num_tokens for answer in answers) / end_s, 1),
        "ttft_ms": percentiles([1e3 * (answer.first_s - ask.at_s) for ask, answer in whole]),
        "tpot_ms": percentiles(tpots),
    }


def play_all(
    sides: Sequence[Side], rates: Sequence[float], duration_s: float, rounds: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Every side's rows."""
    rng = random.Random(seed)
    names = [f"llama-{letter}" for letter in "abcd"[:NUM_MODELS]]
    found: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    warm_up = zipf_asks(rng, names, max(rates), WARM_UP_S, SHAPE["vocab_size"])
    for side in sides:
        side.play(warm_up)
    for number in range(rounds):
        for rate in rates:
            asks = zipf_asks(rng, names, rate, duration_s, SHAPE["vocab_size"])
            for name, answers in in_turn(sides, number, asks):
                row = row_of(rate, asks, answers)
                found[name].append(row)
                print(json.dumps({"side": name, **row}), flush=True)
    return found


def claims_of(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Claim]:
    in_time = {name: sum(row["in_time"] for row in found) for name, found in rows.items()}
    highest = max(row["rate"] for row in rows[_OURS])
    speeds = {
        name: sum(row["tokens_per_s"] for row in found if row["rate"] == highest)
        for name, found in rows.items()
    }
    peers = [name for name in rows if name != _OURS]
    if peers:
        best = max(in_time[name] for name in peers)
        yield Claim("in_time_over_best_peer", round(in_time[_OURS] / max(1, best), 3), "x", _GOAL)
        fastest = max(speeds[name] for name in peers)
        yield Claim("tokens_per_s_over_best_peer", round(speeds[_OURS] / fastest, 3), "x", 1.0)
    asked = sum(row["requests"] for row in rows[_OURS])
    yield Claim("share_in_time", round(in_time[_OURS] / asked, 3), "of requests")
    lost = sum(row["requests"] - row["whole"] for row in rows[_OURS])
    yield Claim("requests_lost", lost, "requests", 0)


def main() -> None:
    """Load all sides, play, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--rates", type=float, nargs="+", metavar="R", help="requests/s together")
    parser.add_argument("--duration", type=float, metavar="S", help="of arrivals, for each rate")
    parser.add_argument("--rounds", type=int, metavar="N", help="default: 4, quick: 1")
    parser.add_argument("--openvino", metavar="PYTHON", help="a Python that has openvino-genai")
    bench = Bench(parser)
    options = bench.options
    if options.openvino is not None:
        check_openvino(options.openvino)
    rates = options.rates or ([2.0] if options.quick else [3.0, 5.0, 7.0])
    duration_s = options.duration or (5.0 if options.quick else 30.0)
    rounds = options.rounds or (1 if options.quick else 4)
    with tempfile.TemporaryDirectory(prefix="bench-several-") as root, ExitStack() as ends:
        models = make_models(Path(root))
        config = write_config(Path(root), models, max(rates))
        # ours last: it waits until its spare processes are made, which the loading of others hides
        sides: list[Side] = []
        if options.openvino is not None:
            for side in openvino_sides(options.openvino, models):
                sides.append(ends.enter_context(side))
        sides.insert(0, ends.enter_context(one_unit(_OURS, config, list(models))))
        rows = play_all(sides, rates, duration_s, rounds, options.seed)
    samples = {
        f"{name} {what}": [row[what] for row in found]
        for name, found in rows.items()
        for what in ("in_time", "tokens_per_s")
    }
    bench.publish(
        list(claims_of(rows)),
        samples,
        model=SHAPE,
        models=NUM_MODELS,
        kv_gb=_KV_GB,
        targets_s={"ttft": TTFT_S, "tpot": TPOT_S},
        rows=rows,
    )


if __name__ == "__main__":
    main()
