"""Memory of a dense model: its sequences in the unit's blocks, its padded batches in a slab.

The slab is a number of blocks of the pool that nobody gets. So what a model takes beside its
sequences is bounded before the first request, and other models keep their memory.
"""

from dataclasses import dataclass
from pathlib import Path

from muxcluster.core.backends import DENSE, ModelBackend
from muxcluster.core.errors import LoadError
from muxcluster.core.padded import PaddedLimit
from muxcluster.core.unitspec import ModelSpec, UnitSpec
from muxcluster.engine.dense.model import DenseModel
from muxcluster.engine.dense.places import num_batches
from muxcluster.engine.dense.store import planes


@dataclass(frozen=True, slots=True, eq=False)
class Slab:
    """A model and its slab."""

    model: DenseModel
    limit: PaddedLimit  # of the padded batch of one worker at a time
    backend: ModelBackend


def slab_for(model: DenseModel, spec: ModelSpec, unit: UnitSpec) -> Slab:
    """Return a slab of half of the model's even part of the pool, or what the longest sequence
    needs.

    Raises LoadError where the pool is too small for that, or a column of blocks, as the unit counts
    them, for the model's own cache.
    """
    layout, file = model.layout, Path(spec.path, "config.json")
    needed = sum(planes(layout, spec.shape, spec.shape.block_tokens(unit.block_bytes)))
    if needed > spec.shape.blocks_per_column:
        message = (
            f"its cache takes {layout.token_bytes} bytes a token and {layout.state_bytes} a "
            f"sequence, for which {needed} blocks a column are needed and not "
            f"{spec.shape.blocks_per_column}"
        )
        raise LoadError(file, message)
    batches = num_batches(unit)
    longest = spec.max_model_len * layout.token_bytes + layout.state_bytes
    most = unit.num_blocks // 2
    blocks = max(most // len(unit.models), -(-batches * longest // unit.block_bytes))
    if blocks > most:
        message = (
            f"a sequence of max_model_len {spec.max_model_len} takes {longest} bytes, and its "
            f"padded batches {batches} times as much, which is more than half of the pool of "
            f"{unit.num_blocks} blocks: raise policy.kv_gb or lower max_model_len"
        )
        raise LoadError(file, message)
    limit = PaddedLimit(layout.row_bytes, blocks * unit.block_bytes // batches)
    backend = ModelBackend(spec.name, DENSE, blocks, not layout.state_bytes, limit)
    return Slab(model, limit, backend)
