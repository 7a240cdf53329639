"""Finds what would keep a step from being captured in a CUDA graph, before a capture is tried."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operators whose result the host waits for.
_SYNCS = frozenset({"_local_scalar_dense", "item", "is_nonzero", "equal"})
# Operators whose result's size depends on values.
_DATA_SHAPED = frozenset(
    {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
)
_WHOLE = frozenset({"scaled_dot_product_attention"})  # Composite operators that a GPU runs as one.


class NotCapturable(RuntimeError):
    """A step does something that a CUDA graph cannot capture, or would do wrongly on a replay."""


class CaptureLint(TorchDispatchMode):
    """While entered, makes operators of torch that cannot be captured raise NotCapturable.

    These are: the host waits for a value of the device; a shape depends on values; memory is copied
    between host and device (a replay would copy from the same addresses again, and from pageable
    memory the host waits); a tensor of the host is an argument of a device's operator, unless it is
    a single number, which is captured by its value. Triton kernels are not seen.
    """

    def __init__(self, device: torch.device) -> None:
        """device: where the step runs. On the CPU only waiting and shapes are refused."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own gap
        self._kind = device.type

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is torch.ops.prim.device.default:
            return func(*args, **options)
        name = func.overloadpacket.__name__
        tensors = [each for each in tree_leaves((args, options)) if isinstance(each, Tensor)]
        if any(each.device.type == self._kind for each in tensors):
            if name in _SYNCS:
                raise NotCapturable(f"{func}: the host waits for a value of the device")
            if name in _DATA_SHAPED or _has_mask(func, args):
                raise NotCapturable(f"{func}: a shape depends on values")
        if name not in _WHOLE and func._can_decompose():
            with self:
                parts = func.decompose(*args, **options)
            if parts is not NotImplemented:
                return parts
        self._check_places(func, name, tensors, options.get("device"))
        return func(*args, **options)

    def _check_places(self, func: Any, name: str, tensors: list[Tensor], target: Any) -> None:
        """Check where arguments lie. target: the device that the operator is asked for, or None."""
        places = {each.device.type for each in tensors if each.dim() or name == "_to_copy"}
        if target is not None and tensors:
            places.add(torch.device(target).type)
        is_constant = name == "lift_fresh" and self._kind != "cpu"  # made from Python's numbers
        if is_constant or (len(places) > 1 and self._kind in places):
            raise NotCapturable(f"{func}: between host and device")


def _has_mask(func: Any, args: Any) -> bool:
    """Return whether elements are picked by truth values, whose number only the device knows."""
    if func not in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default):
        return False
    return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in args[1])
