"""How the pool's blocks are divided: floors, a split by weights, and its rounding to columns."""

from collections.abc import Mapping, Sequence

from muxcluster.scheduling.state.model import ModelState


def weights(models: Sequence[ModelState]) -> dict[str, float]:
    """Each model's demand for memory: rate × blocks of a request of mean length (MuxServe §3.3).

    Planned numbers before the first measurement, measured ones after it.
    """
    return {
        model.name: model.meter.rate_per_s
        * model.meter.mean_tokens
        / model.block_tokens
        * model.blocks_per_column
        for model in models
    }


def floors(models: Sequence[ModelState], num_blocks: int) -> dict[str, int]:
    """Blocks that no adaptation takes from a model: one sequence of max_model_len.

    Where the pool cannot give that to all, every model gets the same part of it, rounded down to
    columns; longer requests are then rejected. Raises ValueError where a column does not fit.
    """
    wanted = {model.name: model.blocks(model.spec.max_model_len) for model in models}
    part = min(1.0, num_blocks / sum(wanted.values()))
    least = {m.name: _whole_columns(m, wanted[m.name] * part) for m in models}
    short = [name for name, blocks in least.items() if blocks == 0]
    if short:
        raise ValueError(f"a pool of {num_blocks} blocks holds not one column of {short[0]!r}")
    return least


def split(
    models: Sequence[ModelState],
    shares: Mapping[str, float],
    least: Mapping[str, int],
    num_blocks: int,
) -> dict[str, int]:
    """Divide `num_blocks` in proportion to `shares`, nobody below `least`, in whole columns.

    `least` must sum to at most `num_blocks`; the result does too.
    """
    quotas: dict[str, int] = {}
    rest, open_models = num_blocks, list(models)
    while open_models:
        total = sum(shares[m.name] for m in open_models)
        even = 1.0 / len(open_models)
        parts = {
            m.name: rest * (shares[m.name] / total if total > 0 else even) for m in open_models
        }
        pinned = [m for m in open_models if parts[m.name] < least[m.name]]
        if not pinned:
            quotas.update((m.name, _whole_columns(m, parts[m.name])) for m in open_models)
            break
        for model in pinned:
            quotas[model.name] = least[model.name]
            rest -= least[model.name]
        open_models = [m for m in open_models if m.name not in quotas]
    return quotas


def _whole_columns(model: ModelState, blocks: float) -> int:
    # A part that is whole but for its rounding must not lose a column.
    return int(blocks + 1e-6) // model.blocks_per_column * model.blocks_per_column
