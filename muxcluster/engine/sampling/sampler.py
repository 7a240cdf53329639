"""Chooses the next token of every row of a batch (design.md §4, sampling)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.core.job import TokenLogprobs
from muxcluster.engine.sampling.batch import Batch
from muxcluster.engine.sampling.best import best_tokens
from muxcluster.engine.sampling.bias import add_bias, hold_end_tokens, rows_to_bias, rows_to_hold
from muxcluster.engine.sampling.constrained import MOST_FEW, Allowed
from muxcluster.engine.sampling.draw import draw
from muxcluster.engine.sampling.logprobs import token_logprobs
from muxcluster.engine.sampling.parameters import SequenceSampling
from muxcluster.engine.sampling.penalties import (
    penalise_counts,
    penalise_repetition,
    rows_counting,
    rows_repeating,
)
from muxcluster.engine.sampling.randomness import uniforms
from muxcluster.engine.sampling.truncation import thresholds

# Which rows an edit is for, and the edit of their logits; in this order.
_EDITS: tuple[
    tuple[Callable[[Batch], NDArray[np.int64]], Callable[[Tensor, Batch, NDArray[np.int64]], None]],
    ...,
] = (
    (rows_to_bias, add_bias),
    (rows_to_hold, hold_end_tokens),
    (rows_repeating, penalise_repetition),
    (rows_counting, penalise_counts),
)


# Logits per chunk of rows, so that a chunk's arrays stay in the processor's cache.
_CHUNK_LOGITS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """Outcome of one sampling call."""

    tokens: NDArray[np.int32]  # int32 [rows]
    logprobs: Mapping[int, TokenLogprobs]  # row -> its token's, only for rows that asked
    # rows whose logits held NaN or +inf, or nothing finite: the model computed nonsense there. NaN
    # counts as impossible, +inf as the largest number, and where nothing is possible every token is
    # equally likely; the other rows are not affected.
    broken_rows: tuple[int, ...] = ()
    # row -> why its constraint could not be followed (`Allowed.errors`); its token is noise
    refused_rows: Mapping[int, str] = field(default_factory=dict)
    mask_wait_s: float = 0.0  # `Allowed.waited_s`
    runs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # `Allowed.runs`
    # row -> its hidden state as bytes of float32, of every row of an embedding model
    vectors: Mapping[int, bytes] = field(default_factory=dict)


def sample(
    logits: Tensor,
    table_rows: NDArray[np.int32],
    history: Tensor,
    lengths: NDArray[np.int32],
    state: SequenceSampling,
    allowed: Allowed | None = None,
) -> Sampled:
    """Sample one token per row; every row's outcome is independent of the rest of the batch.

    logits: fp32 [rows, vocab], not changed. table_rows, lengths: [rows]; a row samples output
    token lengths - num_prompt_tokens of its sequence. history: int32 [max_seqs, max_model_len + 1]
    with the tokens before it. state: parameters of the admitted sequences. allowed: of the rows
    with constraints; all other tokens are impossible, whatever else applies. Order: logit bias, end
    tokens suppressed while output < min_tokens, repetition penalty, frequency and presence
    penalties, constraint; then greedy rows (temperature 0) take the best token, the lowest id on a
    tie; others: temperature, min-p, top-k, top-p, draw. Logprobs are of the logits as given. Of an
    embedding model `logits` are hidden states, which are the outcome, beside tokens 0. Raises
    ValueError if the shapes do not agree.
    """
    _check(logits, table_rows, lengths, state)
    if state.is_embedding:
        return _embedded(logits)
    batch = Batch(table_rows, history, lengths, state, allowed)
    logits, broken_rows = _repaired(logits)
    chosen = _chosen(_edited(logits, batch), batch)
    if allowed is not None:
        chosen = allowed.kept(chosen)
    found = _logprobs(logits, chosen, batch)
    if allowed is None:
        return Sampled(chosen.astype(np.int32), found, broken_rows)
    of_masks = allowed.errors, allowed.waited_s, allowed.runs
    return Sampled(chosen.astype(np.int32), found, broken_rows, *of_masks)


def _embedded(hidden: Tensor) -> Sampled:
    """Return the rows of hidden states, fp32 [rows, size], and a token for each that is nothing."""
    broken = (~hidden.isfinite().all(-1)).nonzero().squeeze(1)
    numbers = hidden.cpu().numpy().astype("<f4", copy=False)
    return Sampled(
        tokens=np.zeros(len(numbers), dtype=np.int32),
        logprobs={},
        broken_rows=tuple(broken.tolist()),
        vectors={row: each.tobytes() for row, each in enumerate(numbers)},
    )


def prompt_logprobs(
    logits: Tensor, targets: NDArray[np.int32], num_top: int
) -> tuple[TokenLogprobs, ...]:
    """Return logprobs of the prompt tokens `targets` [positions] under logits [positions, vocab].

    logits[i] are those of the position before targets[i]; num_top alternatives are listed.
    """
    return token_logprobs(
        logits, targets.astype(np.int64), np.full(len(targets), num_top, dtype=np.int64)
    )


def _check(
    logits: Tensor,
    table_rows: NDArray[np.int32],
    lengths: NDArray[np.int32],
    state: SequenceSampling,
) -> None:
    shape = (len(table_rows), state.vocab_size)
    if logits.shape != shape or logits.dtype != torch.float32 or lengths.shape != table_rows.shape:
        raise ValueError(
            f"logits must be fp32 {shape} with as many lengths, "
            f"got {logits.dtype} {tuple(logits.shape)} and {lengths.shape}"
        )


def _repaired(logits: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Return logits without NaN and +inf, and the rows that had them (`Sampled.broken_rows`)."""
    # A row's maximum shows all three faults: it is NaN, +inf or, with nothing finite, -inf.
    broken = (~logits.amax(-1).isfinite()).nonzero().squeeze(1)
    if not len(broken):
        return logits, ()
    rows = logits[broken].nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    rows.masked_fill_(rows.isneginf().all(-1, keepdim=True), 0.0)
    logits = logits.index_copy(0, broken, rows)
    return logits, tuple(broken.tolist())


def _edited(logits: Tensor, batch: Batch) -> Tensor:
    """Return the logits after all edits but constraints and truncation; `logits` if none apply."""
    edited = logits
    for choose, edit in _EDITS:
        rows = choose(batch)
        if len(rows):
            if edited is logits:
                edited = logits.clone()
            edit(edited, batch, rows)
    return edited


def _chosen(logits: Tensor, batch: Batch) -> NDArray[np.int64]:
    """Return the token of every row, int64 [rows], from its edited logits [rows, vocab]."""
    allowed, tokens = batch.allowed, np.empty(len(logits), np.int64)
    free = np.arange(len(logits))
    if allowed is not None and logits.is_cuda:
        logits = allowed.only(logits)
    elif allowed is not None:
        free = np.setdiff1d(free, allowed.rows, assume_unique=True)
        _choose_allowed(logits, batch, allowed, tokens)
    is_drawn = batch.state.temperature[batch.table_rows[free]] > 0
    best = free[~is_drawn]
    if len(best):
        mine = logits if len(best) == len(logits) else logits[_where(best, logits)]
        tokens[best] = best_tokens(mine).cpu().numpy()
    for rows in _parts(free[is_drawn], batch.state.vocab_size):
        tokens[rows] = _drawn(logits[_where(rows, logits)], batch, rows).cpu().numpy()
    return tokens


def _choose_allowed(
    logits: Tensor, batch: Batch, allowed: Allowed, tokens: NDArray[np.int64]
) -> None:
    """Write the tokens of the constrained rows to `tokens` [rows]. On the CPU.

    A row's way depends on its mask alone, or its token would depend on the rest of the batch.
    """
    masks = dict(zip(allowed.rows.tolist(), allowed.tokens, strict=True))
    few = {row: mine.few for row, mine in masks.items() if mine.few is not None}
    for rows in _parts(np.array(list(few), np.int64), MOST_FEW):
        ids, part = _gathered(logits, rows, [few[row] for row in rows.tolist()])
        places = _picked(part, batch, rows)
        tokens[rows] = ids.numpy()[np.arange(len(rows)), places]
    many = np.array([row for row in masks if row not in few], np.int64)
    for rows in _parts(many, batch.state.vocab_size):
        part = logits[_where(rows, logits)]
        for own, row in zip(part, rows.tolist(), strict=True):
            torch.minimum(own, masks[row].bounds, out=own)
        tokens[rows] = _picked(part, batch, rows)


def _gathered(
    logits: Tensor, rows: NDArray[np.int64], few: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the token ids and logits, [len(rows), MOST_FEW], of rows that may sample few tokens.

    few: of each row. Behind them the logits are -inf.
    """
    ids = torch.zeros((len(rows), MOST_FEW), dtype=torch.int64)
    is_token = torch.zeros(ids.shape, dtype=torch.bool)
    for place, mine in enumerate(few):
        ids[place, : len(mine)] = mine
        is_token[place, : len(mine)] = True
    part = logits[_where(rows, logits).unsqueeze(1), ids]
    return ids, part.masked_fill_(~is_token, -torch.inf)


def _picked(part: Tensor, batch: Batch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place in `part` [len(rows), width], overwritten, that each of `rows` samples."""
    is_drawn = batch.state.temperature[batch.table_rows[rows]] > 0
    if is_drawn.all():
        return _drawn(part, batch, rows).numpy()
    places = best_tokens(part).numpy()
    if is_drawn.any():
        drawn = _where(np.flatnonzero(is_drawn), part)
        places[is_drawn] = _drawn(part[drawn], batch, rows[is_drawn]).numpy()
    return places


def _where(rows: NDArray[np.int64], logits: Tensor) -> Tensor:
    return torch.from_numpy(rows).to(logits.device)


def _parts(rows: NDArray[np.int64], width: int) -> Iterator[NDArray[np.int64]]:
    """Yield `rows` in parts of which an array [rows, width] stays in the processor's cache."""
    at_once = max(1, _CHUNK_LOGITS // width)
    for start in range(0, len(rows), at_once):
        yield rows[start : start + at_once]


def _drawn(logits: Tensor, batch: Batch, rows: NDArray[np.int64]) -> Tensor:
    """Return random tokens int64 [len(rows)] from those rows' logits [rows, width], overwritten.

    width: the vocabulary, or the tokens that are possible.
    """
    state, table_rows, device = batch.state, batch.table_rows[rows], logits.device
    temperature = torch.from_numpy(state.temperature[table_rows]).to(logits)
    temperature = temperature.clamp_(min=torch.finfo(logits.dtype).tiny)
    # a row may have nothing that is possible: no weights, instead of NaN
    best = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
    scores = logits.sub_(best).div_(temperature.unsqueeze(1))
    limits = state.top_k[table_rows], state.top_p[table_rows], state.min_p[table_rows]
    cut = np.flatnonzero((limits[0] < state.vocab_size) | (limits[1] < 1) | (limits[2] > 0))
    threshold = None
    if len(cut):
        which = torch.from_numpy(cut).to(device)
        threshold = torch.full(rows.shape, -torch.inf, device=device)
        threshold[which] = thresholds(
            scores[which], *(torch.from_numpy(limit[cut]).to(device) for limit in limits)
        )
    uniform = uniforms(state.seed[table_rows], batch.output_index[rows])
    return draw(scores, threshold, torch.from_numpy(uniform).to(device))


def _logprobs(
    logits: Tensor, tokens: NDArray[np.int64], batch: Batch
) -> Mapping[int, TokenLogprobs]:
    state = batch.state
    rows = np.flatnonzero(state.wants_logprobs[batch.table_rows])
    if not len(rows):
        return {}
    chosen = logits[torch.from_numpy(rows).to(logits.device)]
    entries = token_logprobs(chosen, tokens[rows], state.num_top[batch.table_rows[rows]])
    return dict(zip(rows.tolist(), entries, strict=True))
