"""Jobs that visit every worker and share of a unit, and the unit that they are for."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.gpu.running.models import bytes_of_block, hf_config, spec_of
from muxcluster.core.job import Admission, Job, Phase, Rows, TableDelta, WorkerSpec
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.placement.shapes.shape import ModelShape

SHAPE = ModelShape(4, 256, 8, 2, 64, 512, 512, 1024)
# The default of 0.02 makes a small model repeat a few tokens, which hides wrong keys.
WEIGHT_STD = 0.2
WORKERS = (
    WorkerSpec(0, (0.3, 0.5), frozenset({Phase.PREFILL})),
    WorkerSpec(1, (0.5, 0.7), frozenset({Phase.DECODE})),
)
MODELS = ("first", "second")
MOST_TOKENS = 256
NUM_PAIRS = 8
_THREADS = 4  # On the CPU, where shares are of these


def write_models(folder: Path) -> None:
    """Two small models of one shape with random weights below `folder`."""
    for seed, name in enumerate(MODELS):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**hf_config(SHAPE, initializer_range=WEIGHT_STD)))
        model.to(torch.float32).save_pretrained(folder / name)


def unit_of(folder: Path, device: str, partition: str) -> UnitSpec:
    """A unit of the models that `write_models` made."""
    num_bytes = bytes_of_block("float32")
    models = tuple(
        spec_of(name, folder / name, SHAPE, "float32", load_format="auto", max_seqs=NUM_PAIRS)
        for name in MODELS
    )
    columns = len(MODELS) * NUM_PAIRS * _columns(models[0], num_bytes)
    return UnitSpec(
        unit_id=f"bench-{partition}",
        models=models,
        num_blocks=columns * models[0].shape.blocks_per_column,
        block_bytes=num_bytes,
        workers=WORKERS,
        device=device,
        partition=partition,
        num_threads=_THREADS,
        num_host_blocks=4,
    )


def pairs(spec: UnitSpec, output_tokens: int) -> Iterator[tuple[Job, Job]]:
    """A prefill and the decode that goes on from it, for every two shares, models in turn."""
    rng = np.random.default_rng(7)
    shares = [(p, d) for p in WORKERS[0].shares for d in WORKERS[1].shares]
    for number in range(NUM_PAIRS):
        model = spec.models[number % len(spec.models)]
        prompt = rng.integers(0, model.vocab_size, rng.integers(3, 150)).astype(np.int32)
        prefill_share, decode_share = shares[number % len(shares)]
        admission = Admission(
            number, str(number), prompt, len(prompt), SamplingParams(temperature=0.0)
        )
        yield (
            Job(
                2 * number,
                model.name,
                Phase.PREFILL,
                0,
                prefill_share,
                _row(number, 0, len(prompt)),
                _table(spec, model, number),
                (admission,),
            ),
            Job(
                2 * number + 1,
                model.name,
                Phase.DECODE,
                1,
                decode_share,
                _row(number, len(prompt), 1),
                _no_table(model),
                max_steps=output_tokens - 1,
            ),
        )


def _row(row: int, start: int, count: int) -> Rows:
    table_rows, starts, counts = (
        np.array([value], dtype=np.int32) for value in (row, start, count)
    )
    return Rows(table_rows, starts, counts, np.ones(1, dtype=np.bool_))


def _table(spec: UnitSpec, model: ModelSpec, number: int) -> TableDelta:
    """Blocks for `MOST_TOKENS` tokens that no other pair has."""
    count = _columns(model, spec.block_bytes)
    width = model.shape.blocks_per_column
    blocks = np.arange(count * width, dtype=np.int32).reshape(count, width) + number * count * width
    columns = np.arange(count, dtype=np.int32)
    return TableDelta(np.full_like(columns, number), columns, blocks)


def _no_table(model: ModelSpec) -> TableDelta:
    nothing = np.empty(0, dtype=np.int32)
    width = model.shape.blocks_per_column
    return TableDelta(nothing, nothing, np.empty((0, width), dtype=np.int32))


def _columns(model: ModelSpec, num_bytes: int) -> int:
    return -(-MOST_TOKENS // model.shape.block_tokens(num_bytes))
