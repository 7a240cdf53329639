"""Lists every tensor of a model by name, and replaces them by those of another process."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn


def tensors_in(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters, buffers and plain attributes by name; tied ones under all their names."""
    return {f"{path}.{name}": tensor for path, _, name, tensor in _places(model)}


def put_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace every tensor of `model` by the one of its name. Raises KeyError if one is missing."""
    for path, module, name, tensor in list(_places(model)):
        given = tensors[f"{path}.{name}"]
        assert given.shape == tensor.shape, f"{path}.{name} has another shape"
        if name in module._parameters:
            given = nn.Parameter(given, requires_grad=False)
        setattr(module, name, given)


def _places(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Yield the path of a module, the module, and name and value of each of its own tensors."""
    for path, module in model.named_modules():
        plain = {name: each for name, each in vars(module).items() if isinstance(each, Tensor)}
        for name, tensor in {**module._parameters, **module._buffers, **plain}.items():
            if tensor is not None:
                yield path, module, name, tensor
