"""What loading its models tells of a unit, and the unit as it is then."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muxcluster.core.padded import PaddedLimit
from muxcluster.core.unitspec import ModelSpec, UnitSpec

PAGED, DENSE = "paged", "dense"


@dataclass(frozen=True, slots=True)
class ModelBackend:
    """How a loaded model runs: see `ModelSpec.backend`.

    slab_blocks: blocks of the pool that its padded batches take the place of. padded: see there.
    is_positional: its cache is one entry a token, so prefixes can be shared.
    """

    model: str
    name: str = PAGED
    slab_blocks: int = 0
    is_positional: bool = True
    padded: PaddedLimit | None = None


def as_loaded(spec: UnitSpec, backends: Sequence[ModelBackend]) -> UnitSpec:
    """The unit that the scheduler and the workers have: a smaller pool where models borrow from
    it, and no prefix shared that is not there token by token.

    Models that `backends` does not name are as `spec` says.
    """
    found = {each.model: each for each in backends}
    models = tuple(_loaded(model, found.get(model.name)) for model in spec.models)
    num_blocks = spec.num_blocks - sum(each.slab_blocks for each in backends)
    return replace(spec, models=models, num_blocks=num_blocks)


def _loaded(spec: ModelSpec, backend: ModelBackend | None) -> ModelSpec:
    if backend is None:
        return spec
    return replace(
        spec,
        backend=backend.name,
        prefix_caching=spec.prefix_caching and backend.is_positional,
        padded=backend.padded,
        is_positional=backend.is_positional,
    )
