"""Puts quantised linears in the place of a model's ordinary ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn

from muxcluster.engine.quantised.linear import QuantisedLinear
from muxcluster.engine.quantised.weight import QuantisedWeight


class Cut(Protocol):
    """Which part of a weight a rank has."""

    @property
    def axis(self) -> int:
        """0: outputs, 1: inputs."""
        ...

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """First and end of each piece."""
        ...


class LinearSource(Protocol):
    """Where quantised weights come from."""

    def linear(self, name: str, linear: nn.Linear) -> QuantisedWeight | None:
        """Return the whole weight of a linear, which may have no data; None: it stays as it is.

        Raises LoadError.
        """
        ...


class NoPart(ValueError):
    """A rank's part of a weight cannot be cut out of it; the message names the linear."""


def replace_linears(
    model: nn.Module,
    source: LinearSource,
    cuts: Mapping[str, Cut],
    device: str,
    rounds_inputs: Callable[[nn.Module], bool],
) -> int:
    """Replace the linears that `source` has quantised, one at a time; return how many.

    cuts: of this rank, by the name of the weight; others are whole. rounds_inputs: whether that of
    a linear does. Biases stay, with or without data. Raises NoPart, and LoadError as `source`.
    """
    num_replaced = 0
    for name, linear in list(model.named_modules()):
        if type(linear) is not nn.Linear:
            continue
        weight = source.linear(name, linear)
        if weight is None:
            continue
        cut = cuts.get(f"{name}.weight")
        try:
            mine = weight if cut is None else weight.part(cut.axis, cut.ranges)
        except ValueError as error:
            raise NoPart(f"{name}: {error}") from error
        layer = QuantisedLinear(
            mine.to(device), linear.bias, linear.weight.dtype, rounds_inputs=rounds_inputs(linear)
        )
        model.set_submodule(name, layer)
        num_replaced += 1
    return num_replaced


def put_linears(
    model: nn.Module,
    tensor_of: Callable[[str], Tensor | None],
    rounds_inputs: Callable[[nn.Module], bool],
) -> None:
    """Put quantised linears where another process's copy of `model` has them.

    tensor_of: its tensors by name, None: there is none of that name. rounds_inputs: as of
    `replace_linears`. Biases stay.
    """
    for name, linear in list(model.named_modules()):
        values, scales = (tensor_of(f"{name}.{leaf}") for leaf in ("values", "scales"))
        if type(linear) is not nn.Linear or values is None or scales is None:
            continue
        weight = QuantisedWeight(
            values,
            scales,
            tensor_of(f"{name}.zeros"),
            linear.in_features // scales.shape[1],
            tensor_of(f"{name}.order"),
        )
        layer = QuantisedLinear(
            weight, linear.bias, linear.weight.dtype, rounds_inputs=rounds_inputs(linear)
        )
        model.set_submodule(name, layer)
