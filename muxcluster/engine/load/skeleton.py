"""Models without their weights: modules, small tables and ties exist, large tensors do not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.forward.attention import ATTENTION_NAME
from muxcluster.engine.forward.latents import keep_latents
from muxcluster.engine.load.hf_config import DTYPES, NotPaged
from muxcluster.engine.states.mixers import keep_states
from muxcluster.engine.vision.loading import has_images


class _NothingAllocated(TorchFunctionMode):
    """Makes `torch.empty` return tensors without data."""

    # Weights are made so, to be filled later. What a module computes while it is made (rotary
    # frequencies, which no file has) is real at once, unlike under `torch.device("meta")`.

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func is torch.empty:
            options["device"] = "meta"
        return func(*args, **options)


def skeleton(
    config: PretrainedConfig, spec: ModelSpec, attention: str | None = ATTENTION_NAME
) -> nn.Module:
    """Return transformers' model of `config`, which is that of `spec`, with ties as one parameter.

    An embedding model has no output layer.

    attention: the attention implementation, None: transformers' own choice. Parameters on the
    "meta" device wait for data, others (norms of most models) have the values they start from.
    Raises LoadError naming config.json, NotPaged if `attention` is at fault.
    """
    try:
        with torch.random.fork_rng([]), _NothingAllocated():
            torch.default_generator.manual_seed(0)  # for what is drawn at once, alike on all ranks
            model: nn.Module = generating_kind(config).from_config(
                config,
                dtype=DTYPES[spec.dtype],
                attn_implementation=attention,
                trust_remote_code=spec.trust_remote_code,
            )
    except Exception as error:  # transformers raises whatever a bad value leads to
        raise refusal(error, Path(spec.path, "config.json")) from error
    if attention == ATTENTION_NAME:
        keep_latents(model)
        if spec.state_columns:
            keep_states(model)
    return without_head(model) if spec.embedding_size else model


def generating_kind(
    config: PretrainedConfig,
) -> type[AutoModelForCausalLM | AutoModelForImageTextToText]:
    """Return the class of transformers that makes a model of this configuration with its logits."""
    kind: type[AutoModelForCausalLM | AutoModelForImageTextToText] = (
        AutoModelForImageTextToText if has_images(config) else AutoModelForCausalLM
    )
    return kind


def names_of_head(model: Any) -> tuple[str, ...]:
    """Return the names of the module that makes logits of hidden states, none if there is none."""
    head = model.get_output_embeddings()
    return tuple(name for name, each in model.named_modules() if head is not None and each is head)


def without_head(model: Any) -> nn.Module:
    """Let the model return the hidden states behind its last layer in place of logits."""
    for name in names_of_head(model):
        model.set_submodule(name, nn.Identity())
    changed: nn.Module = model
    return changed


def refusal(error: Exception, file: Path) -> LoadError:
    """Return the error for a model that refused `attention`."""
    # Models written before the attention interface look our name up in a table of their own.
    if isinstance(error, KeyError) and error.args == (ATTENTION_NAME,):
        config_file = file.parent / "config.json"
        return NotPaged(config_file, "this type of model is not on the attention interface")
    return LoadError(file, f"cannot be loaded: {error}")


def tied_names(model: nn.Module) -> Iterator[tuple[str, ...]]:
    """Return names of every parameter, those of one parameter together."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    yield from map(tuple, names.values())


def put(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Make `tensor` the parameter or buffer `name`, replacing the current one."""
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, tensor)
