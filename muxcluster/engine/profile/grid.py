"""The grid of a profile (shares, batches, lengths), and which of its points a unit can run."""

from dataclasses import dataclass, replace

from muxcluster.core.unitspec import UnitSpec


@dataclass(frozen=True, slots=True)
class Point:
    """`batch` sequences of `tokens` tokens at one SM share: a prefill and a decode step of them."""

    share: float
    batch: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Grid:
    """All combinations of its axes, each measured `repeats` times."""

    shares: tuple[float, ...]
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    repeats: int

    def points(self) -> tuple[Point, ...]:
        """Return every point, the shares one after the other."""
        return tuple(
            Point(share, batch, tokens)
            for share in self.shares
            for tokens in self.lengths
            for batch in self.batches
        )


def fits(spec: UnitSpec, point: Point) -> bool:
    """Return whether the unit's only model has the context, the rows and the blocks for `point`.

    The sequences must be one padded batch if the model is loaded and pads.
    """
    (model,) = spec.models
    padded = model.padded
    columns = -(-point.tokens // model.shape.block_tokens(spec.block_bytes)) + model.state_columns
    return (
        point.tokens <= model.max_model_len
        and point.batch <= min(model.max_seqs, spec.scheduler.max_decode_rows)
        and point.batch * columns * model.shape.blocks_per_column <= spec.num_blocks
        and (padded is None or padded.row_bytes.of(point.batch, point.tokens) <= padded.limit_bytes)
    )


def num_beside(batch: int) -> int:
    """Return how many prompts of a mixed job there are beside `batch` decodes: a unit that has many
    of these gets many of those."""
    return max(1, batch // 4)


def fits_mixed(spec: UnitSpec, point: Point) -> bool:
    """Return whether the decode step of `point` can run beside prompts of its length, as a mixed
    job: on the whole GPU, of a model whose batches are not padded and that has no states."""
    (model,) = spec.models
    prompts = num_beside(point.batch)
    return (
        point.share == 1.0
        and model.padded is None
        and not model.state_columns
        and point.batch + prompts * point.tokens <= spec.scheduler.token_budget
        and fits(spec, replace(point, batch=point.batch + prompts))
    )
