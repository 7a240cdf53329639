"""Output tokens/s of one model with dense and with quantised weights, in process, on this CPU.

The model, the requests and the way they are driven are those of bench/serving.py: a Llama of 56.4
million parameters, 1, 8 and 32 streams, a unit with its worker processes and no HTTP. Its linears
are served in fp32, in bf16, and quantised when they are loaded, each alone, one after the other in
every round. What is said are medians over the rounds of ratios inside a round: a machine's speed
drifts by tens of percent within minutes.

With `--openvino PYTHON`, the path of a Python that has openvino-genai, its continuous batching runs
in every round, too, with weights of 8 bits and with its fp32.

Claims: tokens/s with int8 (inputs rounded to 8 bits, too) and int4 weights over the better of fp32
and bf16, and int8 over OpenVINO's int8, by streams. The record has fp32 over OpenVINO's fp32 beside
it: how far apart both are without any rounding.
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


def main() -> None:
    """Measure round by round; print each; publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCY)
    parser.add_argument("--rounds", type=int, help="(5; 1 with --quick)")
    parser.add_argument("--openvino", metavar="PYTHON", help="a Python that has openvino-genai")
    bench = Bench(parser)
    options = bench.options
    if options.openvino is not None:
        check_openvino(options.openvino)
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
    bench.publish(
        list(claims_of(rounds, options.concurrency)),
        samples,
        model=SHAPE,
        weight_bytes_over_fp32=weight_bytes,
    )


if __name__ == "__main__":
    main()
