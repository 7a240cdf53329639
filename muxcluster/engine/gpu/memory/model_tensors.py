"""Every tensor of a model by its name, and those of another process in their places."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn


def tensors_in(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, buffers and plain attributes by name; tied ones under each of their names."""
    return {f"{path}.{name}": tensor for path, _, name, tensor in _places(model)}


def put_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace every tensor of `model` by the one of its name. Raises KeyError where one lacks."""
    for path, module, name, tensor in list(_places(model)):
        given = tensors[f"{path}.{name}"]
        assert given.shape == tensor.shape, f"{path}.{name} has another shape"
        if name in module._parameters:
            given = nn.Parameter(given, requires_grad=False)
        setattr(module, name, given)


def _places(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Path of a module, the module, and the name and value of one of its own tensors."""
    for path, module in model.named_modules():
        plain = {name: each for name, each in vars(module).items() if isinstance(each, Tensor)}
        for name, tensor in {**module._parameters, **module._buffers, **plain}.items():
            if tensor is not None:
                yield path, module, name, tensor
