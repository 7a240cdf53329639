"""Checkpoints of gpt-oss with experts in MXFP4, rounded and packed by a formula of their own."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from tests.engine.quantised.checkpoints import Checkpoint

BLOCK = 32
ELEMENTS = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
CODES = np.concatenate((ELEMENTS, -ELEMENTS))
EXPERTS = ("experts.gate_up_proj", "experts.down_proj")


def write_mxfp4(source: Path, folder: Path) -> Checkpoint:
    """Quantise the experts of the gpt-oss in `source`, as OpenAI's files have them."""
    found = Checkpoint(folder / "quantised", folder / "dense")
    for target in (found.quantised, found.dense):
        shutil.copytree(source, target)
    weights = load_file(source / "model.safetensors")
    stored, dense = dict(weights), dict(weights)
    for name, weight in weights.items():
        if not name.endswith(EXPERTS):
            continue
        # the module has [experts, in, out], the files [experts, out, in]
        codes, exponents, stands_for = _rounded(weight.transpose(1, 2).double().numpy())
        packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
        del stored[name]
        stored[f"{name}_blocks"] = torch.from_numpy(packed.astype(np.uint8)).contiguous()
        scales = torch.from_numpy((exponents + 127).astype(np.uint8))
        stored[f"{name}_scales"] = scales.contiguous()
        dense[name] = torch.from_numpy(stands_for).transpose(1, 2).float().contiguous()
    save_file(stored, found.quantised / "model.safetensors", {"format": "pt"})
    save_file(dense, found.dense / "model.safetensors", {"format": "pt"})
    file = found.quantised / "config.json"
    config = json.loads(file.read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    quantised = {"quant_method": "mxfp4", "modules_to_not_convert": [*kept, "lm_head"]}
    file.write_text(json.dumps({**config, "quantization_config": quantised}))
    return found


def _rounded(
    weight: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Codes [experts, out, groups, 32], exponents without the last axis, and what they mean."""
    grouped = weight.reshape(*weight.shape[:2], -1, BLOCK)
    exponents = np.floor(np.log2(np.abs(grouped).max(-1))).astype(np.int64) - 2
    powers = 2.0 ** exponents[..., None]
    codes = np.abs(grouped[..., None] / powers[..., None] - CODES).argmin(-1)
    return codes, exponents, (CODES[codes] * powers).reshape(weight.shape)
