"""Structured outputs: what constraints cost a decode step, and that outputs are valid.

The model is a Llama with random weights: 8 layers, hidden size 512, a vocabulary of 128,000 made of
random words and runs of JSON's characters.
- steps: decode steps of 64 rows, all with a constraint (a list of objects, with a number, an
  enumeration, short texts and one without end) or none, in one runner and in turn, a token a step;
  the mask process runs beside on the same cores. Also in processor time, of which other work on the
  machine takes nothing: of the worker, and of the mask process;
- runs: the part of tokens that take no step of their own, because a schema leaves no choice;
- engines: masks of 64 rows by each grammar engine that is installed, on one thread, without model;
- others: time to first token of short requests to a unit, alone, beside another client's requests
  with small schemas, and beside the same with schemas of 64 KB, which are checked and compiled, in
  alternating rounds; in processor time, what one such schema takes of each process;
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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

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
from bench.structured.others import Asker, Rounds, first_tokens, judged
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


def others_rounds(spec: UnitSpec, size: Size) -> dict[str, Rounds]:
    """Others' first tokens, alone, beside small schemas and beside large ones."""
    asker = Asker(spec)
    arguments: dict[str, Any] = {"gap_s": size.gap_s, "schema_bytes": 64 * 1024}
    try:
        first_tokens(asker, num_rounds=1, num_requests=3, **arguments)  # starts the mask process
        return first_tokens(
            asker, num_rounds=size.num_rounds, num_requests=size.num_requests, **arguments
        )
    finally:
        asker.close()


@dataclass(slots=True)
class Found:
    """What the parts that ran have to say."""

    claims: list[Claim] = field(default_factory=list)
    samples: dict[str, Sequence[float]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)


def run_steps(found: Found, spec: UnitSpec, size: Size, seed: int) -> None:
    """What constraints cost a decode step."""
    steps, processor = step_times(spec, size, seed)
    for kind, times in steps.items():
        print(f"{kind:>12} ms a step: {percentiles(times, 2)}", flush=True)
    for kind, mean in processor.items():
        print(f"{kind:>12} processor ms a step: {mean:.1f}", flush=True)
    slowdown = float(np.median(steps["constrained"]) / np.median(steps["free"]))
    found.claims.append(Claim("step_slowdown_64_rows", round(slowdown, 3), "x", 1.05))
    found.samples |= {f"{kind}_ms a step": times for kind, times in steps.items()}
    found.results["processor_ms_a_step"] = {
        kind: round(mean, 1) for kind, mean in processor.items()
    }


def run_runs(found: Found, spec: UnitSpec, size: Size, seed: int) -> None:
    """How many tokens take no step of their own."""
    runs = forced_shares(spec, seed)
    print(f"forced tokens: {runs}", flush=True)
    found.results["forced_share"] = runs


def run_engines(found: Found, spec: UnitSpec, size: Size, seed: int) -> None:
    """Masks by each grammar engine."""
    timed = engine_times(spec, size, seed)
    for kind, (first_ms, times) in timed.items():
        print(f"{kind:>12} first {first_ms:.1f} ms, {NUM_ROWS} masks: {percentiles(times, 2)}")
    found.samples |= {f"{kind} masks_ms": times for kind, (_, times) in timed.items()}
    found.results["first_matcher_ms"] = {kind: round(ms, 1) for kind, (ms, _) in timed.items()}
    found.results["engines_absent"] = (
        {} if engines.xgrammar is not None else {"xgrammar": engines.WHY_NOT}
    )


def run_others(found: Found, spec: UnitSpec, size: Size, seed: int) -> None:
    """What others notice of compiling."""
    others = others_rounds(spec, size)
    for kind, rounds in others.items():
        print(f"{kind:>12} ms to others' first tokens: {percentiles(rounds.taken_ms, 1)}")
        print(f"{kind:>12} processor ms a request: {rounds.of_a_request()}", flush=True)
    p99 = {kind: float(np.percentile(rounds.taken_ms, 99)) for kind, rounds in others.items()}
    moved = p99["beside"] / p99["alone"]
    found.claims.append(Claim("others_ttft_p99_ratio", round(moved, 3), "x", 1.0))
    found.samples |= {f"ttft_ms {kind}": rounds.taken_ms for kind, rounds in others.items()}
    found.results["processor_ms_a_request"] = {
        kind: rounds.of_a_request() for kind, rounds in others.items()
    }


def run_outputs(found: Found, folder: Path, size: Size, seed: int) -> None:
    """Whether outputs are valid."""
    outputs = output_counts(folder, size, seed)
    print(f"outputs: {outputs}", flush=True)
    found.claims.append(Claim("invalid_outputs", outputs["invalid"], "outputs", 0))
    found.results["outputs"] = outputs


PARTS: dict[str, Callable[[Found, UnitSpec, Size, int], None]] = {
    "steps": run_steps,
    "runs": run_runs,
    "engines": run_engines,
    "others": run_others,
}
OUTPUTS = "outputs"  # of a model of its own


def main() -> None:
    """Measure, print a table, publish."""
    parser = make_parser(__doc__)
    every = (*PARTS, OUTPUTS)
    parser.add_argument("--part", nargs="+", choices=every, default=every, help="what to run (all)")
    bench = Bench(parser)
    size = QUICK if bench.options.quick else FULL
    seed, found = bench.options.seed, Found()
    with tempfile.TemporaryDirectory(prefix="bench-constrained-") as name:
        folder = Path(name)
        path = make_model(folder, size, seed)
        spec = unit_of(
            path, max_len=256, max_seqs=2 * NUM_ROWS, num_threads=THREADS, joins_forced=False
        )
        for part, run in PARTS.items():
            if part in bench.options.part:
                run(found, spec, size, seed)
        if OUTPUTS in bench.options.part:
            run_outputs(found, folder, size, seed)
    bench.publish(
        found.claims,
        found.samples,
        threads=THREADS,
        model={"vocab_size": size.vocab_size, "hidden_size": size.hidden_size,
               "num_layers": size.num_layers},
        **found.results,
    )  # fmt: skip


if __name__ == "__main__":
    main()
