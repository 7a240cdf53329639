"""LoRA adapters with random numbers, and their base models with the same numbers merged in."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
LLAMA = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
STD = 0.2  # of A and B: as of the weights that they change, so that answers are others


def write_adapter(
    directory: Path,
    base: Path,
    *,
    rank: int = 4,
    targets: Sequence[str] = LLAMA,
    seed: int = 0,
    **config: object,
) -> Path:
    """Write an adapter of the model in `base` as PEFT does; returns `directory`.

    targets: the last parts of its linears' names. config: further keys of adapter_config.json.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, weight in load_file(base / "model.safetensors").items():
        module, _, kind = name.rpartition(".")
        if kind == "weight" and module.rpartition(".")[2] in targets:
            num_outputs, num_inputs = weight.shape
            down = torch.randn(rank, num_inputs, generator=generator) * STD
            up = torch.randn(num_outputs, rank, generator=generator) * STD
            tensors[f"base_model.model.{module}.lora_A.weight"] = down
            tensors[f"base_model.model.{module}.lora_B.weight"] = up
    content = {
        "peft_type": "LORA",
        "base_model_name_or_path": base.name,
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "task_type": "CAUSAL_LM",
        **config,
    }
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text(json.dumps(content))
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def merged(directory: Path, base: Path, adapter: Path) -> Path:
    """Write the base with the adapter's numbers in its weights, in float64; returns `directory`.

    The adapter has one rank and one alpha.
    """
    shutil.copytree(base, directory)
    config = json.loads((adapter / "adapter_config.json").read_text())
    rank, alpha = config["r"], config["lora_alpha"]
    scale = alpha / (math.sqrt(rank) if config["use_rslora"] else rank)
    weights = load_file(base / "model.safetensors")
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, up in tensors.items():
        if not name.endswith(".lora_B.weight"):
            continue
        module = name.removeprefix("base_model.model.").removesuffix(".lora_B.weight")
        down = tensors[name.replace(".lora_B.", ".lora_A.")]
        weight = weights[f"{module}.weight"].double()
        changed = weight + scale * (up.double() @ down.double())
        weights[f"{module}.weight"] = changed.float()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
