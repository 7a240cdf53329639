"""Units whose models bring their own cache: shapes that hold their rows, what they must answer."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from muxcluster.core.job import WorkerSpec
from muxcluster.core.kvshape import KvShape
from muxcluster.core.unitspec import ModelSpec, SchedulerSpec, UnitSpec
from tests.engine.units import spec_of
from tests.models import model_spec

VOCAB = 512
OWN_SHAPES = {
    "mamba": KvShape(num_layers=5, num_kv_heads=1, head_dim=4, itemsize=4),
    "jamba": KvShape(num_layers=40, num_kv_heads=1, head_dim=4, itemsize=4),
}
"""Of families whose config.json does not say how many blocks a sequence takes."""


def own_spec(directory: Path, family: str) -> ModelSpec:
    """The model as `spec_of` makes others."""
    if family not in OWN_SHAPES:
        return model_spec(directory, directory.name, max_seqs=16, max_model_len=256)
    return ModelSpec(
        name=directory.name,
        path=str(directory),
        shape=OWN_SHAPES[family],
        vocab_size=VOCAB,
        max_model_len=256,
        eos_token_ids=(1,),
        max_seqs=16,
    )


def unit_of(
    dense: dict[str, Path],
    paged: tuple[Path, ...],
    *,
    partition: str = "none",
    lane: str = "mixed",
    num_blocks: int = 6000,
) -> UnitSpec:
    """A unit of `dense` models, by family, beside `paged` ones."""
    models = tuple(own_spec(path, family) for family, path in dense.items())
    if not paged:
        workers = (WorkerSpec(0, (1.0,)),)
        scheduler = SchedulerSpec(lane=lane, token_budget=64, quota_period_s=1e4)
        return UnitSpec("unit-0", models, num_blocks, 4096, workers, scheduler, "cpu", partition, 1)
    spec = spec_of(paged, lane=lane, partition=partition)
    return replace(spec, models=(*models, *spec.models), num_blocks=num_blocks)


@cache
def _library(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def generated(directory: Path, prompt: list[int], num_tokens: int) -> list[int]:
    """The library's own greedy answer to one query alone."""
    model = _library(directory)
    with torch.inference_mode():
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.int64),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
        )
    answer: list[int] = np.asarray(ids[0, len(prompt) :]).tolist()
    return answer
