"""Models as the dense backend holds them."""

from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from muxcluster.engine.dense.model import DenseModel


@cache
def dense_model(directory: Path) -> DenseModel:
    """The model in `directory`, in fp32."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return DenseModel.of(model)
