"""Which tokens a batch's rows may sample next, where requests have constraints."""

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.constraints.process.client import MaskClient, PendingMasks
from muxcluster.constraints.rows import MaskRow
from muxcluster.core.job import Admission
from muxcluster.core.sampling import Constraint
from muxcluster.core.unitspec import ModelSpec

# Where a mask allows at most so many tokens, only these are looked at: in JSON that is all but the
# inside of texts. In vocabularies that are not much larger it is not worth it.
MOST_FEW = 1024
LEAST_VOCAB = 8 * MOST_FEW
_MOST_KEPT = 32  # masks whose other forms are kept, of which `bounds` takes 4 bytes a token
_WORD_BITS = 32
# float32 [256, 8]: by byte of a mask, inf for an allowed token and -inf for another
_BOUNDS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    np.float32(np.inf),
    np.float32(-np.inf),
)


class AllowedTokens:
    """The tokens that one mask allows, in the forms in which sampling takes them."""

    def __init__(self, bits: NDArray[np.uint32], vocab_size: int) -> None:
        """bits: uint32 [words], lowest bit first; set: allowed."""
        self.bits = bits
        self._vocab_size = vocab_size

    @cached_property
    def few(self) -> Tensor | None:
        """int64 [at most MOST_FEW], the tokens in order; None where more are allowed."""
        if self._vocab_size < LEAST_VOCAB:
            return None
        places = np.flatnonzero(self.bits)
        if len(places) > MOST_FEW:
            return None
        octets = self.bits[places].view(np.uint8)
        found = np.flatnonzero(np.unpackbits(octets, bitorder="little"))
        if len(found) > MOST_FEW:
            return None
        return torch.from_numpy(places[found // _WORD_BITS] * _WORD_BITS + found % _WORD_BITS)

    @cached_property
    def bounds(self) -> Tensor:
        """fp32 [vocab]: inf for an allowed token, -inf for another.

        Of 64 rows and 128,000 tokens a minimum takes a third of the time of torch.where, which
        branches.
        """
        found = np.take(_BOUNDS, self.bits.view(np.uint8), axis=0)
        return torch.from_numpy(found).flatten()[: self._vocab_size]

    @property
    def first(self) -> int | None:
        """The lowest token; None where none is allowed."""
        places = np.flatnonzero(self.bits)
        if not len(places):
            return None
        word = int(self.bits[places[0]])
        return int(places[0]) * _WORD_BITS + (word & -word).bit_length() - 1

    def __contains__(self, token: int) -> bool:
        return bool(int(self.bits[token // _WORD_BITS]) >> token % _WORD_BITS & 1)


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """The tokens that the constrained rows of one sampling call may sample."""

    rows: NDArray[np.int64]  # int64 [constrained], of the call, ascending
    tokens: Sequence[AllowedTokens]  # [constrained]
    must_end: NDArray[np.bool_]  # bool [constrained], only end tokens are allowed
    # Row of the call -> why its tokens cannot be told; such a row may sample anything, for nothing
    errors: Mapping[int, str]
    waited_s: float = 0.0  # for the masks, after the forward
    # Row of the call -> tokens that must follow the one it samples, which is the only one
    runs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def only(self, logits: Tensor) -> Tensor:
        """Return `logits` [rows, vocab] with all other tokens impossible; they are not changed."""
        mask = self._mask(logits.shape[1], logits.device)
        if len(self.rows) == len(logits):
            return torch.where(mask, logits, -torch.inf)
        where = torch.from_numpy(self.rows).to(logits.device)
        return logits.index_copy(0, where, torch.where(mask, logits[where], -torch.inf))

    def kept(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `tokens` [rows], the lowest allowed one for a row that has another.

        A row has another where the model, or a bias, makes all allowed ones impossible.
        """
        kept = tokens
        for row, mine in zip(self.rows.tolist(), self.tokens, strict=True):
            if int(tokens[row]) not in mine and (first := mine.first) is not None:
                kept = tokens.copy() if kept is tokens else kept
                kept[row] = first
        return kept

    def _mask(self, vocab_size: int, device: torch.device) -> Tensor:
        """Return bool [constrained, vocab] on `device`."""
        # the bits are an eighth of the bytes
        bits = np.stack([mine.bits for mine in self.tokens])
        words = torch.from_numpy(bits.view(np.int32)).to(device)
        shifts = torch.arange(_WORD_BITS, device=device, dtype=torch.int32)
        mask = (words.unsqueeze(-1) >> shifts) & 1
        return mask.flatten(1)[:, :vocab_size].bool()


class KnownMasks:
    """The last masks of a model in their other forms, for any thread: many steps and rows have the
    same."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        # The arrays are kept, so that no other has the same id.
        self._kept: OrderedDict[tuple[int, tuple[int, ...]], AllowedTokens] = OrderedDict()
        self._arrays: dict[tuple[int, tuple[int, ...]], NDArray[np.uint32]] = {}
        num_words = -(-vocab_size // _WORD_BITS)
        # For a row whose mask cannot be told, so that it can be computed, whatever for.
        self.every = AllowedTokens(np.full(num_words, 0xFFFFFFFF, np.uint32), vocab_size)

    def of(self, bits: NDArray[np.uint32], without: tuple[int, ...] = ()) -> AllowedTokens:
        """Return the tokens of a mask, uint32 [words], but for those of `without`.

        An array that is the same as before must hold the same.
        """
        key = id(bits), without
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = AllowedTokens(_cleared(bits, without), self._vocab_size)
                self._kept[key], self._arrays[key] = found, bits
                while len(self._kept) > _MOST_KEPT:
                    old, _ = self._kept.popitem(last=False)
                    del self._arrays[old]
            else:
                self._kept.move_to_end(key)
        return found


def _cleared(bits: NDArray[np.uint32], tokens: Sequence[int]) -> NDArray[np.uint32]:
    """Return a mask without `tokens`."""
    if not tokens:
        return bits
    cleared = bits.copy()
    for token in tokens:
        cleared[token // _WORD_BITS] &= ~np.uint32(1 << token % _WORD_BITS)
    return cleared


@dataclass(frozen=True, slots=True)
class PendingAllowed:
    """Masks that were asked for; they are made while the forward runs."""

    rows: NDArray[np.int64]
    pending: PendingMasks
    known: KnownMasks
    # Place among the constrained rows -> end tokens that are kept for when nothing else is allowed
    late_ends: Mapping[int, tuple[int, ...]]
    rooms: Sequence[int]  # [constrained], tokens that the history has room for

    def wait(self) -> Allowed:
        """Wait for the masks. Raises EngineFailure if the process that makes them is gone."""
        begun_s = time.monotonic()
        masks = self.pending.wait()
        waited_s = time.monotonic() - begun_s
        tokens = [
            self.known.every
            if place in masks.errors
            else self.known.of(bits, () if must_end else self.late_ends.get(place, ()))
            for place, (bits, must_end) in enumerate(
                zip(masks.bits, masks.must_end.tolist(), strict=True)
            )
        ]
        errors = {int(self.rows[place]): why for place, why in masks.errors.items()}
        runs = {
            int(self.rows[place]): run[1 : self.rooms[place]]
            for place, run in masks.runs.items()
            if self.rooms[place] > 1
        }
        return Allowed(self.rows, tokens, masks.must_end, errors, waited_s, runs)


class ConstrainedRows:
    """The table rows of one model whose requests have constraints."""

    def __init__(
        self, spec: ModelSpec, history: Tensor, client: MaskClient | None, *, may_join: bool = False
    ) -> None:
        """history: int32 [max_seqs, max_model_len + 1]. client: None where none can be admitted.

        may_join: the next step may compute several tokens of a row, so that runs of forced tokens
        are sampled in one, if the client asks for them.
        """
        self._model = spec.name
        self._eos_token_ids = spec.eos_token_ids
        self._history = history
        self._on_host = None if history.is_cuda else history.numpy()  # a view
        self._client = client
        self._joins = may_join and client is not None and client.joins
        self._known = KnownMasks(spec.vocab_size)
        self._asking: dict[int, Admission] = {}

    def admit(self, admission: Admission) -> None:
        """Forget the row's former sequence, remember this one if it has a constraint.

        Raises ValueError if it has one and nobody can tell what that allows.
        """
        self._asking.pop(admission.row, None)
        if admission.sampling.constraint is None:
            return
        if self._client is None:
            raise ValueError(f"{self._model}: no process makes masks for constraints here")
        self._asking[admission.row] = admission

    def begin(
        self, table_rows: NDArray[np.int32], lengths: NDArray[np.int32], *, is_last: bool = True
    ) -> PendingAllowed | None:
        """Ask what the rows (arrays: [rows]) may sample behind `lengths` tokens; None: anything.

        Their tokens are in the history. Returns without waiting for the answer. is_last: no other
        step of the same rows follows, so that some may sample several tokens.
        """
        if not self._asking:
            return None
        rows = [row for row, each in enumerate(table_rows.tolist()) if each in self._asking]
        if not rows:
            return None
        asked: list[MaskRow] = []
        late_ends: dict[int, tuple[int, ...]] = {}
        for place, row in enumerate(rows):
            admission = self._asking[int(table_rows[row])]
            if admission.sampling.ignore_eos:
                late_ends[place] = self._eos_token_ids
            asked.append(self._row(admission, int(lengths[row]), joins=is_last and self._joins))
        assert self._client is not None
        rooms = [self._history.shape[1] - int(lengths[row]) for row in rows]
        pending = self._client.begin(asked)
        return PendingAllowed(np.array(rows), pending, self._known, late_ends, rooms)

    def _row(self, admission: Admission, length: int, *, joins: bool) -> MaskRow:
        constraint: Constraint | None = admission.sampling.constraint
        assert constraint is not None
        row, output = admission.row, slice(admission.num_prompt_tokens, length)
        if self._on_host is None:
            tokens = self._history[row, output].cpu().numpy()
        else:
            tokens = self._on_host[row, output].copy()
        # Nobody computes the log-probabilities of tokens that are not sampled.
        joins = joins and admission.sampling.logprobs is None
        return MaskRow(self._model, admission.request_id, constraint, tokens, joins)
