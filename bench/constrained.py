"""Structured outputs: what constraints cost a decode step, and that outputs are valid.

The model is a Llama with random weights: 8 layers, hidden size 512, a vocabulary of 128,000 made of
random words and runs of JSON's characters.
- steps: decode steps of 64 rows, all with a constraint (a list of objects, with a number, an
  enumeration, short texts and one without end) or none, in one runner and in turn, a token a step;
  the mask process runs beside on the same cores. Also in processor time, of which other work on the
  machine takes nothing: of the worker, and of the mask process;
- runs: the part of tokens that take no step of their own, because a schema leaves no choice;
- engines: masks of 64 rows by each grammar engine that is installed, on one thread, without model;
- others: time to first token of short requests to a unit, alone and while another client's schemas
  of 64 KB are checked and compiled, in alternating rounds;
- outputs: one output of each of 2,000 random schemas, judged by jsonschema, from a small model.
Claims: median step with constraints over without; invalid outputs; p99 of others' first tokens
beside compiling schemas over alone.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from muxcluster.engine.processes.owner_link import ONE_THREAD

if __name__ == "__main__" and any(os.environ.get(name) != ONE_THREAD[name] for name in ONE_THREAD):
    # The C library and OpenMP read these at start: all is measured as in a worker.
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **ONE_THREAD})

from dataclasses import dataclass, replace

import numpy as np
import torch

from bench.harness import Bench, Claim, cannot_run, make_parser, percentiles

try:
    import jsonschema
    import llguidance

    PACKAGES = (jsonschema, llguidance)
except ImportError as error:
    cannot_run(f"{error}: install the extras serve and dev")

from bench.structured import engines
from bench.structured.others import Asker, first_tokens, judged
from bench.structured.runs import forced_share
from bench.structured.steps import NAME, DecodeRows, server_ms, unit_of
from bench.structured.vocabulary import widen
from muxcluster.constraints import grammars
from muxcluster.constraints.matching import TokenMasks
from muxcluster.constraints.process.supervisor import MaskProcess
from muxcluster.constraints.rows import MaskModel
from muxcluster.constraints.vocabulary import load_vocabulary
from muxcluster.core.sampling import Constraint
from muxcluster.core.unitspec import UnitSpec
from muxcluster.demo.models import build_model
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.text.tokenizer import Tokenizer

THREADS = len(os.sched_getaffinity(0))
NUM_ROWS = 64
PERSON = {
    "type": "object",
    "properties": {
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["person", "company", "other"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        "name": {"type": "string"},
    },
    "required": ["age", "kind", "tags", "name"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": PERSON, "minItems": 1000}  # no row ends within the run
CALL = {
    "type": "object",
    "properties": {
        "destination_city": {"enum": ["Amsterdam", "Buenos Aires", "Casablanca"]},
        "departure_date": {"type": "string", "format": "date"},
        "number_of_travellers": {"type": "integer", "minimum": 1, "maximum": 9},
        "travel_class": {"enum": ["economy", "premium economy", "business"]},
        "needs_wheelchair_assistance": {"type": "boolean"},
    },
    "required": [
        "destination_city",
        "departure_date",
        "number_of_travellers",
        "travel_class",
        "needs_wheelchair_assistance",
    ],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Size:
    """How large the run is."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_steps: int
    num_rounds: int
    num_requests: int
    gap_s: float
    num_schemas: int


QUICK = Size(8_000, 64, 2, 12, 1, 10, 0.05, 40)
FULL = Size(128_000, 512, 8, 60, 5, 40, 0.4, 2_000)


def make_model(folder: Path, size: Size, seed: int) -> Path:
    """Write the large model."""
    shape = {
        "vocab_size": size.vocab_size,
        "hidden_size": size.hidden_size,
        "intermediate_size": 11 * size.hidden_size // 4,
        "num_hidden_layers": size.num_layers,
        "num_attention_heads": max(1, size.hidden_size // 64),
        "num_key_value_heads": max(1, size.hidden_size // 128),
        "head_dim": 64,
    }
    path = build_model(folder / NAME, "llama", seed=seed, **shape)
    widen(path / "tokenizer.json", size.vocab_size, seed)
    return path


@torch.inference_mode()
def step_times(
    spec: UnitSpec, size: Size, seed: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Milliseconds of steps without and with constraints, and what the latter waited for masks;
    mean processor milliseconds of both, and of the mask process beside the latter."""
    model = spec.models[0]
    masks = MaskModel(model.name, model.path, model.vocab_size, model.eos_token_ids)
    constraint = Constraint(grammars.json_schema(SCHEMA, "schema"))
    process = MaskProcess([masks])
    try:
        problem = process.check(NAME, constraint)
        if problem is not None:
            raise RuntimeError(problem)
        runner = UnitRunner(replace(spec, mask_address=process.address))
        torch.set_num_threads(THREADS)
        free = DecodeRows(runner, range(NUM_ROWS), [None] * NUM_ROWS, seed)
        bound = DecodeRows(runner, range(NUM_ROWS, 2 * NUM_ROWS), [constraint] * NUM_ROWS, seed + 1)
        found: dict[str, list[float]] = {"free": [], "constrained": []}
        begin_ms = 0.0
        for number in range(size.num_steps + 2):
            if number == 2:
                begin_ms = server_ms(process)
            for name, rows in (("free", free), ("constrained", bound)):
                taken_ms = rows.step()
                if number >= 2:
                    found[name].append(taken_ms)
        processor = {
            "free": float(np.mean(free.processor_ms[2:])),
            "constrained": float(np.mean(bound.processor_ms[2:])),
            "masks": (server_ms(process) - begin_ms) / size.num_steps,
        }
        return {**found, "mask_wait": bound.waits_ms[2:]}, processor
    finally:
        process.close()


def engine_times(spec: UnitSpec, size: Size, seed: int) -> dict[str, tuple[float, list[float]]]:
    """Milliseconds of each grammar engine: of the first matcher, and of the masks of each step."""
    model = spec.models[0]
    vocabulary = load_vocabulary(
        MaskModel(model.name, model.path, model.vocab_size, model.eos_token_ids)
    )
    made = engines.makers(vocabulary, TokenMasks(vocabulary), SCHEMA)
    if engines.xgrammar is None:
        print(f"xgrammar is left out: {engines.WHY_NOT}", flush=True)
    return {name: engines.run(make, NUM_ROWS, size.num_steps, seed) for name, make in made.items()}


def forced_shares(spec: UnitSpec, seed: int) -> dict[str, float]:
    """Which part of the tokens takes no step of its own, by schema."""
    model = spec.models[0]
    masks = TokenMasks(
        load_vocabulary(MaskModel(model.name, model.path, model.vocab_size, model.eos_token_ids))
    )
    schemas = {"list": SCHEMA, "person": PERSON, "call": CALL}
    return {
        name: round(forced_share(masks, [schema] * NUM_ROWS, seed), 3)
        for name, schema in schemas.items()
    }


def output_counts(folder: Path, size: Size, seed: int) -> dict[str, int]:
    """What becomes of one output of every random schema, from a small model."""
    path = build_model(folder / "small", "llama", seed=seed)
    spec = unit_of(path, max_len=512, max_seqs=32, num_threads=1)
    asker = Asker(spec)
    try:
        seeds = range(seed, seed + size.num_schemas)
        return judged(asker, Tokenizer.load(path), seeds, max_tokens=400)
    finally:
        asker.close()


def others_times(spec: UnitSpec, size: Size) -> dict[str, list[float]]:
    """Milliseconds to others' first tokens, alone and beside compiling schemas."""
    asker = Asker(spec)
    arguments: dict[str, Any] = {"gap_s": size.gap_s, "schema_bytes": 64 * 1024}
    try:
        first_tokens(asker, num_rounds=1, num_requests=3, **arguments)  # starts the mask process
        return first_tokens(
            asker, num_rounds=size.num_rounds, num_requests=size.num_requests, **arguments
        )
    finally:
        asker.close()


def main() -> None:
    """Measure, print a table, publish."""
    bench = Bench(make_parser(__doc__))
    size = QUICK if bench.options.quick else FULL
    seed = bench.options.seed
    with tempfile.TemporaryDirectory(prefix="bench-constrained-") as name:
        folder = Path(name)
        path = make_model(folder, size, seed)
        spec = unit_of(
            path, max_len=256, max_seqs=2 * NUM_ROWS, num_threads=THREADS, joins_forced=False
        )
        steps, processor = step_times(spec, size, seed)
        for kind, times in steps.items():
            print(f"{kind:>12} ms a step: {percentiles(times, 2)}", flush=True)
        for kind, mean in processor.items():
            print(f"{kind:>12} processor ms a step: {mean:.1f}", flush=True)
        runs = forced_shares(spec, seed)
        print(f"forced tokens: {runs}", flush=True)
        found = engine_times(spec, size, seed)
        for kind, (first_ms, times) in found.items():
            print(f"{kind:>12} first {first_ms:.1f} ms, {NUM_ROWS} masks: {percentiles(times, 2)}")
        others = others_times(spec, size)
        for kind, times in others.items():
            print(f"{kind:>12} ms to others' first tokens: {percentiles(times, 1)}", flush=True)
        outputs = output_counts(folder, size, seed)
        print(f"outputs: {outputs}", flush=True)
    slowdown = float(np.median(steps["constrained"]) / np.median(steps["free"]))
    moved = float(np.percentile(others["beside"], 99) / np.percentile(others["alone"], 99))
    claims = [
        Claim("step_slowdown_64_rows", round(slowdown, 3), "x", 1.05),
        Claim("invalid_outputs", outputs["invalid"], "outputs", 0),
        Claim("others_ttft_p99_ratio", round(moved, 3), "x", 1.0),
    ]
    samples = {f"{kind}_ms a step": times for kind, times in steps.items()}
    samples |= {f"{kind} masks_ms": times for kind, (_, times) in found.items()}
    samples |= {f"ttft_ms {kind}": times for kind, times in others.items()}
    bench.publish(
        claims,
        samples,
        threads=THREADS,
        model={"vocab_size": size.vocab_size, "hidden_size": size.hidden_size,
               "num_layers": size.num_layers},
        first_matcher_ms={kind: round(first_ms, 1) for kind, (first_ms, _) in found.items()},
        engines_absent={} if engines.xgrammar is not None else {"xgrammar": engines.WHY_NOT},
        outputs=outputs,
        processor_ms_a_step={kind: round(mean, 1) for kind, mean in processor.items()},
        forced_share=runs,
    )  # fmt: skip


if __name__ == "__main__":
    main()
