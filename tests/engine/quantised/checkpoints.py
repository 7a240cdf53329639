"""Quantised checkpoints of tiny models, packed by plain loops, and the weights they stand for."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP = 32
BLOCK = (48, 64)  # of block-wise FP8: divides no side of the models evenly

WITH_HEAD = ("gptq-8",)  # whose output layer is quantised too

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model directory with quantised weights, and one with the same weights in fp32."""

    quantised: Path
    dense: Path


def write(source: Path, folder: Path, method: str) -> Checkpoint:
    """Quantise the layers' linears of the model in `source`. method: a key of `METHODS`."""
    make, found = METHODS[method]
    found_checkpoint = Checkpoint(folder / "quantised", folder / "dense")
    for target in (found_checkpoint.quantised, found_checkpoint.dense):
        shutil.copytree(source, target)
    weights = load_file(source / "model.safetensors")
    stored, dense = dict(weights), dict(weights)
    for name, weight in weights.items():
        linear, _, leaf = name.rpartition(".")
        is_head = linear == "lm_head" and method in WITH_HEAD
        if leaf != "weight" or weight.ndim != 2 or not (is_quantised(linear) or is_head):
            continue
        tensors, stands_for = make(weight.numpy().astype(np.float64), seed=len(name))
        del stored[name]
        stored |= {f"{linear}.{ending}": each.contiguous() for ending, each in tensors.items()}
        dense[name] = torch.from_numpy(np.ascontiguousarray(stands_for, dtype=np.float32))
    save_file(stored, found_checkpoint.quantised / "model.safetensors", {"format": "pt"})
    save_file(dense, found_checkpoint.dense / "model.safetensors", {"format": "pt"})
    file = found_checkpoint.quantised / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "quantization_config": found}))
    return found_checkpoint


def is_quantised(linear: str) -> bool:
    """Linears of the layers; embeddings and the output layer stay as they are."""
    return ".layers." in linear and "layernorm" not in linear and "layer_norm" not in linear


def words(fields: NDArray[np.int64], bits: int) -> Tensor:
    """int32 of the last axis of `fields`, the first in the lowest bits."""
    per_word = 32 // bits
    packed = np.zeros((*fields.shape[:-1], fields.shape[-1] // per_word), dtype=np.uint32)
    for place in range(per_word):
        packed |= fields[..., place::per_word].astype(np.uint32) << np.uint32(place * bits)
    return torch.from_numpy(packed.view(np.int32))


def _grid(
    weight: NDArray[np.float64], bits: int, *, symmetric: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Unsigned values [out, in], fp16 scales and zero points [out, groups]."""
    grouped = weight.reshape(len(weight), -1, GROUP)
    top = 2**bits - 1
    if symmetric:
        scales = np.abs(grouped).max(-1) / (top // 2)
        zeros = np.full(scales.shape, (top + 1) // 2, dtype=np.int64)
    else:
        scales = (grouped.max(-1) - grouped.min(-1)) / (top - 2)
        zeros = np.clip(np.rint(-grouped.min(-1) / scales), 0, top).astype(np.int64)
        zeros[::3, ::2] = 0  # the least there is, which GPTQ's first version stores as a borrow
    scales = scales.astype(np.float16).astype(np.float64)
    values = np.rint(grouped / scales[..., None]) + zeros[..., None]
    return np.clip(values, 0, top).astype(np.int64).reshape(weight.shape), scales, zeros


def _stand_for(
    values: NDArray[np.int64], scales: NDArray[np.float64], zeros: NDArray[np.int64]
) -> NDArray[np.float64]:
    grouped = values.reshape(len(values), scales.shape[1], -1)
    return ((grouped - zeros[..., None]) * scales[..., None]).reshape(values.shape)


def _half(scales: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(scales).half()


def _awq(weight: NDArray[np.float64], *, seed: int) -> tuple[Tensors, NDArray[np.float64]]:
    values, scales, zeros = _grid(weight, 4, symmetric=False)

    def shuffled(rows: NDArray[np.int64]) -> Tensor:
        eights = rows.reshape(len(rows), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]]
        return words(eights.reshape(rows.shape), 4)

    tensors = {
        "qweight": shuffled(values.T),
        "qzeros": shuffled(zeros.T),
        "scales": _half(scales).T,
    }
    return tensors, _stand_for(values, scales, zeros)


def _gptq(bits: int, *, symmetric: bool, acts_in_order: bool = True) -> Any:  # a function as `_awq`
    def make(weight: NDArray[np.float64], *, seed: int) -> tuple[Tensors, NDArray[np.float64]]:
        num_in = weight.shape[1]
        order = np.arange(num_in)
        if not acts_in_order:
            order = np.random.default_rng(seed).permutation(num_in)
        # groups are of neighbours in `order`; each input is stored where it is
        values, scales, zeros = _grid(weight[:, order], bits, symmetric=symmetric)
        back = np.argsort(order)
        groups = (np.arange(num_in) // GROUP)[back]
        tensors = {
            "qweight": words(values[:, back], bits).T,
            "qzeros": words(zeros.T, bits) - sum(1 << place for place in range(0, 32, bits)),
            "scales": _half(scales).T,
            "g_idx": torch.from_numpy(groups).int(),
        }
        # packed along the inputs: [in / per word, out]
        tensors["qweight"] = words(values[:, back], bits).T
        return tensors, _stand_for(values, scales, zeros)[:, back]

    return make


def _packed(bits: int, *, symmetric: bool, packs_zeros: bool = True) -> Any:
    def make(weight: NDArray[np.float64], *, seed: int) -> tuple[Tensors, NDArray[np.float64]]:
        values, scales, zeros = _grid(weight, bits, symmetric=symmetric)
        tensors = {
            "weight_packed": words(values, bits),
            "weight_scale": _half(scales),
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(zeros.T, bits).T
            if not packs_zeros:
                tensors["weight_zero_point"] = torch.from_numpy(zeros - 2 ** (bits - 1)).char()
        return tensors, _stand_for(values, scales, zeros)

    return make


def _int8(weight: NDArray[np.float64], *, seed: int) -> tuple[Tensors, NDArray[np.float64]]:
    scales = np.abs(weight).max(1, keepdims=True).astype(np.float32).astype(np.float64) / 127
    values = np.clip(np.rint(weight / scales), -127, 127)
    tensors = {
        "weight": torch.from_numpy(values.astype(np.int8)),
        "weight_scale": torch.from_numpy(scales).float(),
    }
    return tensors, values * scales.astype(np.float32).astype(np.float64)


def _fp8(weight: NDArray[np.float64], *, seed: int) -> tuple[Tensors, NDArray[np.float64]]:
    scale = np.float32(np.abs(weight).max() / 448)
    values = torch.from_numpy(weight / scale).to(torch.float8_e4m3fn)
    tensors = {"weight": values, "weight_scale": torch.tensor([scale])}
    return tensors, values.double().numpy() * float(scale)


def _blocks(weight: NDArray[np.float64], *, seed: int) -> tuple[Tensors, NDArray[np.float64]]:
    num_out, num_in = weight.shape
    rows, columns = BLOCK
    scales = np.zeros((-(-num_out // rows), -(-num_in // columns)), dtype=np.float32)
    whole = np.zeros_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            place = np.s_[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scales[i, j] = np.abs(weight[place]).max() / 448
            whole[place] = scales[i, j]
    values = torch.from_numpy(weight / whole).to(torch.float8_e4m3fn)
    tensors = {"weight": values, "weight_scale_inv": torch.from_numpy(scales)}
    return tensors, values.double().numpy() * whole


def _compressed(weights: Mapping[str, Any], inputs: Any = None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def _by_group(bits: int, *, symmetric: bool) -> dict[str, Any]:
    found = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP}
    return _compressed({**found, "symmetric": symmetric})


_GPTQ = {"quant_method": "gptq", "group_size": GROUP, "desc_act": False}
_INPUTS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
METHODS: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "awq": (_awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}),
    "gptq": (_gptq(4, symmetric=False), {**_GPTQ, "bits": 4, "sym": False}),
    "gptq-sym": (_gptq(4, symmetric=True), {**_GPTQ, "bits": 4, "sym": True}),
    "gptq-8": (_gptq(8, symmetric=False), {**_GPTQ, "bits": 8, "sym": False}),
    "gptq-order": (
        _gptq(4, symmetric=False, acts_in_order=False),
        {**_GPTQ, "bits": 4, "sym": False, "desc_act": True},
    ),
    "packed-4": (_packed(4, symmetric=True), _by_group(4, symmetric=True)),
    "packed-4-zeros": (_packed(4, symmetric=False), _by_group(4, symmetric=False)),
    "packed-4-int8-zeros": (
        _packed(4, symmetric=False, packs_zeros=False),
        _by_group(4, symmetric=False),
    ),
    "packed-8": (_packed(8, symmetric=True), _by_group(8, symmetric=True)),
    "int8": (
        _int8,
        _compressed(
            {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}, _INPUTS
        ),
    ),
    "fp8-tensor": (
        _fp8,
        _compressed({"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}),
    ),
    "fp8-auto": (_fp8, {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    "fp8-blocks": (
        _blocks,
        {"quant_method": "fp8", "weight_block_size": list(BLOCK), "activation_scheme": "dynamic"},
    ),
}

ROUNDING = ("int8",)  # whose products round their inputs, too
EXACT = tuple(method for method in METHODS if method not in ROUNDING)
