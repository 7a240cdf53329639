"""Random LoRA adapters for bench/adapters.py, and whether tokens are those of merged weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.adapters import write_adapter

# Merged weights and products of low rank round differently: tokens whose logits are closer than
# this, over the standard deviation of all logits of their position, are taken for equal.
NEAR = 1e-4


def write_adapters(base: Path, folder: Path, number: int, rank: int) -> list[dict[str, str]]:
    """Write adapters of all linears; return their entries of a configuration."""
    found = []
    for seed in range(number):
        path = write_adapter(folder / f"adapter-{seed}", base, rank=rank, seed=seed)
        found.append({"name": path.name, "path": str(path)})
    return found


class MergedModels:
    """Hugging Face's model in fp32, with the numbers of one adapter after the other merged in."""

    def __init__(self, base: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()

    @torch.inference_mode()
    def num_different(self, adapter: Path | None, prompt: Sequence[int], output: list[int]) -> int:
        """Tokens of `output` that are not the likeliest after all before them.

        adapter: its directory; None: the base.
        """
        with self._merged(adapter):
            logits = self._model(torch.tensor([[*prompt, *output]])).logits[0]
        rows = logits[len(prompt) - 1 : -1]
        chosen = rows.gather(1, torch.tensor(output)[:, None])[:, 0]
        gaps = (rows.max(-1).values - chosen) / rows.std(-1)
        return int((gaps > NEAR).sum())

    @contextmanager
    def _merged(self, adapter: Path | None) -> Iterator[None]:
        before: dict[str, Tensor] = {}
        if adapter is not None:
            for name, change in _changes(adapter).items():
                weight = self._model.get_submodule(name).weight
                before[name] = weight.clone()
                weight.copy_((weight.double() + change).float())
        try:
            yield
        finally:
            for name, weight in before.items():
                self._model.get_submodule(name).weight.copy_(weight)


def _changes(adapter: Path) -> dict[str, Tensor]:
    """What an adapter of `write_adapter`, whose alpha is twice its rank, adds to each linear."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    found = {}
    for name, up in tensors.items():
        if name.endswith(".lora_B.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_B.weight")
            down = tensors[name.replace(".lora_B.", ".lora_A.")]
            found[module] = 2.0 * (up.double() @ down.double())
    return found
