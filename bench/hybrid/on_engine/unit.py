"""Units of `bench/hybrid/engine.py`: random models of some 80 million parameters in this process.

A decode step of one row reads about 280 MB of weights, which is what makes it last 20 ms.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from muxcluster.config.facts import read_facts
from muxcluster.core.events import TokenDelta
from muxcluster.core.job import WorkerSpec
from muxcluster.core.kvshape import KvShape, block_bytes
from muxcluster.core.request import Slo
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from muxcluster.engine.unit.unit import Unit

THREADS = 1  # Of every phase. The other core is for whoever sends the requests.

_COMMON = {
    "vocab_size": 16_000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 9,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-a": {**_COMMON, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64},
    "llama-b": {**_COMMON, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 128},
}
# The same with steps of a few milliseconds.
SMALL: Mapping[str, Mapping[str, Any]] = {
    name: {
        **shape,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": shape["num_attention_heads"] // 3,
        "num_key_value_heads": shape["num_key_value_heads"] // 2,
    }
    for name, shape in SHAPES.items()
}
VOCABULARY = 16_000
_MAX_LEN = 192
MAX_SEQS = 40
_BLOCK_TOKENS = 16
_TOKEN_BUDGET = 64  # Of every system: at some 400 tokens/s a job of more would be felt by everybody
# Sequences of greatest length that the pool holds for each model: fewer than there are rows, so
# that interactive requests take blocks of batch ones.
_WHOLE_SEQS = 24


def write_configs(folder: Path, shapes: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """A directory each with a configuration alone; the engine draws the weights."""
    paths = {name: folder / name for name in shapes}
    for name, path in paths.items():
        AutoConfig.for_model(
            "llama", **shapes[name], architectures=["LlamaForCausalLM"]
        ).save_pretrained(path)
    return paths


def unit_spec(paths: Mapping[str, Path], packing: str, slo: Slo | None) -> UnitSpec:
    """One worker, jobs of decodes and chunks, host memory for every block."""
    size = block_bytes(_BLOCK_TOKENS, 4)
    models, num_blocks = [], 0
    for seed, (name, path) in enumerate(paths.items()):
        facts = read_facts(path).shape
        shape = KvShape(facts.num_layers, facts.num_kv_heads, facts.head_dim, 4)
        columns = -(-_MAX_LEN // shape.block_tokens(size))
        num_blocks += _WHOLE_SEQS * columns * shape.blocks_per_column
        models.append(
            ModelSpec(
                name,
                str(path),
                shape,
                facts.vocab_size,
                _MAX_LEN,
                eos_token_ids=(),
                load_format="dummy",
                seed=seed,
                max_seqs=MAX_SEQS,
                prefix_caching=False,
                slo=slo,
            )
        )
    return UnitSpec(
        unit_id=packing,
        models=tuple(models),
        num_blocks=num_blocks,
        block_bytes=size,
        workers=(WorkerSpec(0, (1.0,)),),
        scheduler=SchedulerSpec(lane="mixed", packing=packing, token_budget=_TOKEN_BUDGET),
        partition="none",
        num_threads=THREADS,
        num_host_blocks=num_blocks,
    )


@contextmanager
def running(spec: UnitSpec, hear: Callable[[Mapping[str, TokenDelta]], None]) -> Iterator[Unit]:
    """The unit, started, and closed at the end."""
    torch.set_num_threads(THREADS)
    unit = Unit(spec, hear)
    unit.start()
    try:
        yield unit
    finally:
        unit.close()
