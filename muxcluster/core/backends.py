"""How the models of a unit run, which is known once they are loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muxcluster.core.padded import PaddedLimit
from muxcluster.core.unitspec import ModelSpec, UnitSpec

PAGED, DENSE, ENCODER = "paged", "dense", "encoder"

# Names in a configuration of how far layers look back, or of blocks that they do not look beyond.
WINDOW_NAMES = ("sliding_window", "window_size", "attention_window", "attention_chunk_size")


@dataclass(frozen=True, slots=True)
class ModelBackend:
    """How a loaded model runs: see `ModelSpec.backend`."""

    model: str
    name: str = PAGED
    slab_blocks: int = 0  # blocks of the pool whose memory its padded batches take
    is_positional: bool = True  # its cache is one entry a token, so prefixes can be shared
    padded: PaddedLimit | None = None  # see `ModelSpec.padded`
    is_unordered: bool = False  # see `ModelSpec.is_unordered`
    # See `ModelSpec`; of a backend that keeps all tokens, 0 and none.
    window: int = 0
    window_layers: tuple[int, ...] = ()
    state_columns: int = 0  # see `ModelSpec`; a model that has some shares no prefixes


def paged_backend(
    model: str, windows: Sequence[int | None], *, is_unordered: bool, state_columns: int = 0
) -> ModelBackend:
    """Return how a paged model runs.

    windows: how many of the last tokens each layer sees, None: all. Layers with different ones keep
    what the widest of them sees. state_columns: see `ModelSpec`.
    """
    layers = tuple(i for i, window in enumerate(windows) if window)
    window = max((window for window in windows if window), default=0)
    return ModelBackend(
        model,
        PAGED,
        is_unordered=is_unordered,
        window=window,
        window_layers=layers,
        state_columns=state_columns,
    )


def as_loaded(spec: UnitSpec, backends: Sequence[ModelBackend]) -> UnitSpec:
    """Return the spec for scheduler and workers once the models are loaded.

    The pool is smaller by the memory of padded batches; models whose cache is not one entry a token
    or that keep states share no prefixes, and those that take them in order share none across
    classes. Models that `backends` does not name stay as they are in `spec`.
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
        prefix_caching=(
            spec.prefix_caching and backend.is_positional and not backend.state_columns
        ),
        padded=backend.padded,
        is_positional=backend.is_positional,
        is_unordered=backend.is_unordered,
        window=backend.window,
        window_layers=backend.window_layers,
        state_columns=backend.state_columns,
    )
