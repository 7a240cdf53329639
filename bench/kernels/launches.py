"""Kernel launches per layer of a step, counted on a fake CUDA device."""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, Qwen3Config

from bench.kernels.fake_cuda import FakeCuda, Recording, decode_step, load
from muxcluster.core.job import WorkerSpec
from muxcluster.core.kvshape import KvShape
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.forward.batch import host_batch
from muxcluster.engine.forward.loaded_model import LoadedModel
from muxcluster.engine.forward.paged_attention import PagedAttention
from muxcluster.engine.memory.upload import PackedUpload

# Launches a layer may take, by family; a call of a library counts once.
MOST_LAUNCHES: Mapping[str, int] = {"llama": 12, "qwen3": 14}

ROWS = 64  # Rows of the step: few enough that long contexts are split, which takes one launch more

_SIZES = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
# Llama-3-8B and Qwen3-8B in so many layers.
_FAMILIES: Mapping[str, Callable[[int], Any]] = {
    "llama": lambda num_layers: LlamaConfig(
        num_hidden_layers=num_layers,
        intermediate_size=14336,
        vocab_size=128256,
        max_position_embeddings=8192,
        architectures=["LlamaForCausalLM"],
        **_SIZES,
    ),
    "qwen3": lambda num_layers: Qwen3Config(
        num_hidden_layers=num_layers,
        intermediate_size=12288,
        vocab_size=151936,
        head_dim=128,
        max_position_embeddings=8192,
        architectures=["Qwen3ForCausalLM"],
        **_SIZES,
    ),
}


def layer_launches(family: str, *, fuses: bool = True) -> Counter[str]:
    """Launches by name that one layer adds to a decode step; fuses: as of `UnitSpec`."""
    one, two = (_launches(family, number, decode_rows, fuses) for number in (1, 2))
    return two - one


def prompt_launches(family: str, rows: Sequence[tuple[int, int]]) -> Counter[str]:
    """Launches by name that one layer adds to a step of rows of (start, tokens)."""
    one, two = (_launches(family, number, partial(prompt_rows, rows)) for number in (1, 2))
    return two - one


def _launches(
    family: str, num_layers: int, run: Callable[[LoadedModel], None], fuses: bool = True
) -> Counter[str]:
    return recorded(family, num_layers, run, fuses).count()


def recorded(
    family: str, num_layers: int, run: Callable[[LoadedModel], None], fuses: bool = True
) -> Recording:
    """The second `run` of a model of `num_layers` layers, which has no weights."""
    config = _FAMILIES[family](num_layers)
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        unit = _unit(Path(directory), config, num_layers, fuses)
        with torch.inference_mode(), FakeCuda() as cuda:
            (model,) = load(unit)
            run(model)
            with cuda.recording() as recording:
                run(model)
    return recording


def decode_rows(model: LoadedModel, num_rows: int = ROWS, *, shares: bool = False) -> None:
    """A decode step, as it is recorded; shares: prefixes of groups of rows."""
    decode_step(model, num_rows, shares=shares).run()


def prompt_rows(rows: Sequence[tuple[int, int]], model: LoadedModel) -> None:
    """A step of rows of (start, tokens)."""
    starts, counts = np.array(rows, dtype=np.int32).T
    host = host_batch(np.arange(len(rows), dtype=np.int32), starts, counts)
    batch = host.on_device(PackedUpload(model.pool.device)(host.arrays))
    attention = PagedAttention(model.pool, model.arena, batch)
    tokens = torch.zeros_like(batch.positions)
    model.forward.logits(tokens, batch.positions, attention, tokens[: len(rows)])


def _unit(directory: Path, config: Any, num_layers: int, fuses: bool) -> UnitSpec:
    model = ModelSpec(
        "m",
        str(directory),
        KvShape(num_layers, config.num_key_value_heads, 128, 2),
        config.vocab_size,
        config.max_position_embeddings,
        (2,),
        dtype="bfloat16",
        load_format="dummy",
        max_seqs=256,
    )
    workers = (WorkerSpec(0, (1.0,)),)
    return UnitSpec(
        "u", (model,), 1000, 8192, workers, device="cuda:0", partition="none", fuses_layers=fuses
    )
