"""What loads of a unit's models have shown, kept in memory that all their owners share.

A model is run when it is loaded: for its backend, for finite logits, and to compare it with its
fused form. That takes as long as packing it, so later wakes on the same files skip it.
"""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import torch

from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.adapters.forward import AdaptedForward
from muxcluster.engine.decoders.torch_decoder import FusedDecoder
from muxcluster.engine.dense.encoder import Encoder
from muxcluster.engine.dense.slab import Slab
from muxcluster.engine.forward.attention import LayerCall
from muxcluster.engine.forward.paged_forward import TokenForward
from muxcluster.engine.memory.arena import allocate
from muxcluster.engine.steps.runner import Earlier

_NOTHING, _UNFUSED, _FUSED = 0, 1, 2


class LoadChecks:
    """One record a model: which files were loaded, and whether the model ran fused."""

    def __init__(self, calls: Sequence[Sequence[LayerCall] | None]) -> None:
        """calls: of each model's layers, as far as known before any load."""
        self._calls = calls
        # int64 [models, 2]: which of the above, and the files as a number
        self._records = allocate(torch.device("cpu"), "checks", (len(calls), 2), torch.int64)

    def earlier(self, place: int, spec: ModelSpec) -> Earlier | None:
        """Return what an earlier load of the model at `place` has shown; None: load it as new."""
        kind, files = self._records[place].tolist()
        if kind == _NOTHING or files != _files_of(spec):
            return None
        return Earlier(self._calls[place] if kind == _FUSED else None)

    def record(self, place: int, spec: ModelSpec, forward: TokenForward | Slab | Encoder) -> None:
        """Record that the model was loaded and checked, and runs as `forward`."""
        if isinstance(forward, Slab | Encoder):
            return
        if isinstance(forward, AdaptedForward):
            forward = forward.plain
        kind = _UNFUSED
        if isinstance(forward, FusedDecoder):
            if [layer.call for layer in forward.layers] != list(self._calls[place] or ()):
                return
            kind = _FUSED
        self._records[place] = torch.tensor([kind, _files_of(spec)])


def _files_of(spec: ModelSpec) -> int:
    """Return a number that changes with the files of model and adapters: names, sizes, times."""
    folders = (spec.path, *(each.path for each in spec.adapters))
    files = [file for folder in folders for file in sorted(Path(folder).iterdir())]
    stats = [(file.name, file.stat()) for file in files]
    named = repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])
    return int.from_bytes(blake2b(named.encode(), digest_size=7).digest(), "little")
