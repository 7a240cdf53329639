"""A CUDA graph's twin on the CPU: a step's operators, recorded and run again without its Python."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from muxcluster.engine.adapters import linear as adapters_linear
from muxcluster.engine.forward import paged_attention as attention_paged
from muxcluster.engine.sampling import plain
from muxcluster.engine.steps.device.capture_lint import NotCapturable
from muxcluster.engine.steps.device.captures import Step
from muxcluster.kernels.attention.latent_attention import latent_attention
from muxcluster.kernels.attention.paged_decode import paged_decode
from muxcluster.kernels.attention.prefix_attention import prefix_attention
from muxcluster.kernels.kv_write import kv_write
from muxcluster.kernels.products.low_rank_update import low_rank_update
from muxcluster.kernels.sample import sample

Operator = Callable[..., Any]

_ASKING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.item.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.resolve_conj.default,
}
"""Operators that wait for the device (the last one in `tolist` and `numpy`), or whose result has as
many elements as it says."""


def _has_mask(args: tuple[Any, ...]) -> bool:
    """Whether elements are picked by truth values: how many, only the device knows."""
    picked = args[1] if len(args) > 1 and isinstance(args[1], list) else []
    return any(isinstance(each, torch.Tensor) and each.dtype == torch.bool for each in picked)


@dataclass
class _Tape(TorchDispatchMode):
    calls: list[tuple[Operator, tuple[Any, ...], dict[str, Any], Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, func: Operator, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _ASKING or _has_mask(args):
            raise NotCapturable(f"{func} asks the device while it is being captured")
        return self.note(func, args, kwargs or {})

    def note(self, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run it and remember it, with the very tensors it took and gave."""
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for old, new in zip(tree_flatten(result)[0], tree_flatten(again)[0], strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class TapeCapture:
    """Kernels are single operators of the tape, as they are on a GPU.

    place: may be set. captures, replays: how many there were. num_calls: of each kernel while
    recording. Threads may record side by side.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = 0
        self.captures = 0
        self.replays = 0
        self.num_calls: Counter[str] = Counter()
        self._here = threading.local()
        for module, kernel in (
            (attention_paged, kv_write),
            (attention_paged, latent_attention),
            (attention_paged, paged_decode),
            (attention_paged, prefix_attention),
            (adapters_linear, low_rank_update),
            (plain, sample),
        ):
            monkeypatch.setattr(module, kernel.__name__, self.as_one(kernel))

    def check(self, step: Step) -> None:
        """As `Capture.check`."""
        before = self.num_calls.copy()
        self._record(step)
        self.num_calls = before

    def capture(self, step: Step) -> Step:
        """As `Capture.capture`."""
        self.captures += 1
        step()
        tape = self._record(step)

        def replay() -> None:
            self.replays += 1
            tape.replay()

        return replay

    def _record(self, step: Step) -> _Tape:
        tape = _Tape()
        self._here.tape = tape
        try:
            with tape:
                step()
        finally:
            self._here.tape = None
        return tape

    def as_one(self, kernel: Operator) -> Operator:
        """`kernel` as a single operator of the tape that the calling thread records, if any."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            tape = getattr(self._here, "tape", None)
            if tape is None:
                return kernel(*args, **kwargs)
            self.num_calls[kernel.__name__] += 1
            with torch.utils._python_dispatch._disable_current_modes():
                return tape.note(kernel, args, kwargs)

        return noted
