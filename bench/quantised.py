"""Quantised weights: output tokens/s on this CPU. Keys and values in 8 bits: how many, how good.

Weights: the model, the requests and the way they are driven are those of bench/serving.py: a Llama
of 56.4 million parameters, 1, 8 and 32 streams, a unit with its worker processes and no HTTP. Its
linears are served in fp32, in bf16, and quantised when they are loaded, each alone, one after the
other in every round. What is said are medians over the rounds of ratios inside a round: a machine's
speed drifts by tens of percent within minutes.

Keys and values: sequences of 1,000 tokens of an 8B Llama that the scheduler lets into one pool at
once, in 8 bits over 16; and the perplexity of held-out bytes of tinyshakespeare for a Llama of 0.6
million parameters that is trained here first, with `kv_dtype` over without.

With `--openvino PYTHON`, the path of a Python that has openvino-genai, its continuous batching runs
in every round, too, with weights of 8 bits and with its fp32.

Claims: tokens/s with int8 (inputs rounded to 8 bits, too) and int4 weights over the better of fp32
and bf16, and int8 over OpenVINO's int8, by streams (the record has fp32 over OpenVINO's fp32, too:
how far apart both are without any rounding); of keys and values in int8 (and, with its name, in
FP8) sequences over those in 16 bits, and the loss of perplexity in percent. `--part` measures one
of the two.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.harness import Bench, Claim, make_parser
from bench.online import rounded_kv
from bench.online.rows import Case
from bench.serving import (
    CONCURRENCY,
    SHAPE,
    alone,
    cases,
    check_openvino,
    make_model,
    write_config,
)
from muxcluster.config.facts import quantised, read_facts

# Names of the sides: dtype of the activations, kind of the weights.
SIDES: Mapping[str, tuple[str, str]] = {
    "fp32": ("float32", "none"),
    "bf16": ("bfloat16", "none"),
    "int8": ("float32", "int8"),
    "int4": ("float32", "int4"),
    "int4_bf16": ("bfloat16", "int4"),
}
_DENSE = ("fp32", "bf16")
_OPENVINO = {"int8": "openvino_int8", "fp32": "openvino_fp32"}  # beside our sides
_GOALS = {"int8_over_best_dense_at_1": 1.5}
_MOST_LOSS = 0.5  # of perplexity, %

Round = Mapping[str, Sequence[float]]  # of each side, tokens/s by case


def measure(path: Path, asked: Sequence[Case], openvino: str | None) -> Round:
    """Each side once. openvino: the Python that has it."""
    found = {}
    for side, formats in SIDES.items():
        config = write_config(path, asked[0].num_tokens, *formats)
        answer = alone(config, asked, "unit.py")
        found[side] = [each["tokens_per_s"] for each in answer["cases"]]
    if openvino is not None:
        answer = alone(path, asked, "openvino_genai.py", openvino, tuple(_OPENVINO))
        for kind, rows in answer["cases"].items():
            found[_OPENVINO[kind]] = [each["tokens_per_s"] for each in rows]
    return found


def ratios(rounds: Sequence[Round], side: str, others: Sequence[str], place: int) -> list[float]:
    """Tokens/s of `side` over the best of `others`, round by round."""
    return [each[side][place] / max(each[other][place] for other in others) for each in rounds]


def claims_of(rounds: Sequence[Round], streams: Sequence[int]) -> Iterator[Claim]:
    for kind, sides in (("int8", ("int8",)), ("int4", ("int4", "int4_bf16"))):
        for place, number in enumerate(streams):
            name = f"{kind}_over_best_dense_at_{number}"
            best = max(median(ratios(rounds, side, _DENSE, place)) for side in sides)
            yield Claim(name, round(best, 3), "x", _GOALS.get(name, 1.0))
    for side, other in _OPENVINO.items():
        if other in rounds[0]:
            for place, number in enumerate(streams):
                over = median(ratios(rounds, side, (other,), place))
                yield Claim(f"{side}_over_{other}_at_{number}", round(over, 3), "x", 1.0)


def bytes_over_fp32(path: Path) -> dict[str, float]:
    """Bytes of all weights by kind, embeddings and output layer included."""
    facts = read_facts(path)
    whole = facts.shape.weight_bytes(4)
    kinds = ("int8", "int4", "fp8")
    return {kind: round(quantised(facts, kind).shape.weight_bytes(4) / whole, 4) for kind in kinds}


def measure_weights(bench: Bench) -> tuple[list[Claim], dict[str, list[Any]], dict[str, Any]]:
    """Measure round by round and print each. Return claims, samples and results."""
    options = bench.options
    asked = cases(options.concurrency, options.seed, is_quick=options.quick)
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="bench-quantised-") as folder:
        path = make_model(Path(folder))
        weight_bytes = bytes_over_fp32(path)
        for _ in range(options.rounds or (1 if options.quick else 5)):
            rounds.append(measure(path, asked, options.openvino))
            print(json.dumps(rounds[-1]), flush=True)
    samples: dict[str, list[Any]] = {
        f"tokens_per_s {side} at {number}": [each[side][place] for each in rounds]
        for side in rounds[0]
        for place, number in enumerate(options.concurrency)
    }
    claims = list(claims_of(rounds, options.concurrency))
    return claims, samples, {"model": SHAPE, "weight_bytes_over_fp32": weight_bytes}


def measure_kv(bench: Bench) -> tuple[list[Claim], dict[str, list[Any]], dict[str, Any]]:
    """Count sequences, train, and take perplexities. Return claims, samples and results."""
    options = bench.options
    data = bench.data()
    fits = {each: rounded_kv.sequences_that_fit(each) for each in rounded_kv.KV_DTYPES}
    print(json.dumps(fits), flush=True)
    text, held_out = rounded_kv.read_text(data)
    if options.quick:
        held_out = held_out[: len(held_out) // 8]
    with tempfile.TemporaryDirectory(prefix="bench-kv-") as folder:
        num_steps = options.steps or (60 if options.quick else 500)
        path, trained = rounded_kv.train(text, Path(folder), num_steps, options.seed)
        losses = {each: rounded_kv.losses_of(path, held_out, each) for each in rounded_kv.KV_DTYPES}
    found = {each: rounded_kv.perplexity(losses[each]) for each in rounded_kv.KV_DTYPES}
    print(json.dumps(found), flush=True)
    claims = []
    for kv_dtype, ending in (("int8", ""), ("fp8_e4m3", "_fp8")):
        ratio = fits[kv_dtype] / fits["auto"]
        worse = 100 * (found[kv_dtype] / found["auto"] - 1)
        claims += [
            Claim(f"kv8_sequences_over_kv16{ending}", round(ratio, 3), "x", 2.0),
            Claim(f"perplexity_loss_kv8{ending}", round(worse, 4), "%", _MOST_LOSS),
        ]
    samples = {f"nats a byte, {each}": [round(loss, 6) for loss in losses[each]] for each in losses}
    results = {
        "kv_model": dict(rounded_kv.SHAPE),
        "training": {"steps": num_steps, "perplexity": round(trained, 4)},
        "perplexity": {each: round(number, 5) for each, number in found.items()},
        "sequences": fits,
    }
    return claims, samples, results


def main() -> None:
    """Measure the parts that are asked for; publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--part", choices=("all", *_PARTS), default="all")
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCY)
    parser.add_argument("--rounds", type=int, help="(5; 1 with --quick)")
    parser.add_argument("--steps", type=int, help="of training (500; 60 with --quick)")
    parser.add_argument("--openvino", metavar="PYTHON", help="a Python that has openvino-genai")
    bench = Bench(parser)
    if bench.options.openvino is not None:
        check_openvino(bench.options.openvino)
    claims: list[Claim] = []
    samples: dict[str, list[Any]] = {}
    results: dict[str, Any] = {}
    for name, part in _PARTS.items():
        if bench.options.part in ("all", name):
            made = part(bench)
            claims += made[0]
            samples |= made[1]
            results |= made[2]
            bench.save(claims, samples, **results)
    bench.publish(claims, samples, **results)


_PARTS = {"weights": measure_weights, "kv": measure_kv}

if __name__ == "__main__":
    main()
