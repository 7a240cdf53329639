"""Models without weights of their own, into which the weights of another process are put."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.attention import ATTENTION_NAME
from muxcluster.engine.hf_config import DTYPES, read_config


def skeleton(spec: ModelSpec) -> nn.Module:
    """The model in `spec.path`, all its tensors on the meta device. Raises as `load_model`."""
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(
            read_config(Path(spec.path)),
            dtype=DTYPES[spec.dtype],
            attn_implementation=ATTENTION_NAME,
            trust_remote_code=False,
        )
    return model.eval().requires_grad_(False)


def tensors_in(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, buffers and plain attributes by name; tied ones under each of their names."""
    return {f"{path}.{name}": tensor for path, _, name, tensor in _slots(model)}


def put_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace every tensor of `model` by the one of its name. Raises KeyError where one lacks."""
    for path, module, name, tensor in list(_slots(model)):
        given = tensors[f"{path}.{name}"]
        assert given.shape == tensor.shape, f"{path}.{name} has another shape"
        if name in module._parameters:
            module._parameters[name] = nn.Parameter(given, requires_grad=False)
        elif name in module._buffers:
            module._buffers[name] = given
        else:
            setattr(module, name, given)


def _slots(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Path of a module, the module, and the name and value of one of its own tensors."""
    for path, module in model.named_modules():
        plain = {name: each for name, each in vars(module).items() if isinstance(each, Tensor)}
        for name, tensor in {**module._parameters, **module._buffers, **plain}.items():
            if tensor is not None:
                yield path, module, name, tensor
