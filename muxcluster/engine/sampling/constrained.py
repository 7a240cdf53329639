"""Which tokens a batch's rows may sample next, where requests have constraints."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from muxcluster.constraints.process.client import MaskClient, PendingMasks
from muxcluster.constraints.rows import MaskRow
from muxcluster.core.job import Admission
from muxcluster.core.sampling import Constraint
from muxcluster.core.unitspec import ModelSpec

_WORD_BITS = 32
_ALL = np.uint32(0xFFFFFFFF)
# float32 [256, 8]: by byte of a mask, inf for an allowed token and -inf for another
_BOUNDS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    np.float32(np.inf),
    np.float32(-np.inf),
)


@dataclass(frozen=True, slots=True, eq=False)
class Allowed:
    """The tokens that the constrained rows of one sampling call may sample."""

    rows: NDArray[np.int64]  # int64 [constrained], of the call
    bits: NDArray[np.uint32]  # uint32 [constrained, words], lowest bit first; set: allowed
    must_end: NDArray[np.bool_]  # bool [constrained], only end tokens are allowed
    # Row of the call -> why its tokens cannot be told; such a row may sample anything, for nothing
    errors: Mapping[int, str]
    waited_s: float = 0.0  # for the masks, after the forward

    def only(self, logits: Tensor) -> Tensor:
        """Return `logits` [rows, vocab] with all other tokens impossible; they are not changed."""
        if logits.device.type == "cpu":
            bounds = self._bounds(*logits.shape)
            return torch.minimum(logits, bounds, out=bounds)
        mask = self._mask(logits.shape[1], logits.device)
        if len(self.rows) == len(logits):
            return torch.where(mask, logits, -torch.inf)
        where = torch.from_numpy(self.rows).to(logits.device)
        return logits.index_copy(0, where, torch.where(mask, logits[where], -torch.inf))

    def kept(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `tokens` [rows], the lowest allowed one for a row that has another.

        A row has another where the model, or a bias, makes all allowed ones impossible.
        """
        mine = tokens[self.rows]
        words = self.bits[np.arange(len(mine)), mine // _WORD_BITS]
        is_allowed = (words >> (mine % _WORD_BITS).astype(np.uint32)) & 1 == 1
        if is_allowed.all():
            return tokens
        kept = tokens.copy()
        for place in np.flatnonzero(~is_allowed).tolist():
            first = np.flatnonzero(_unpacked(self.bits[place : place + 1])[0])
            if len(first):
                kept[self.rows[place]] = first[0]
        return kept

    def _bounds(self, num_rows: int, vocab_size: int) -> Tensor:
        """Return fp32 [rows, vocab]: -inf where a constrained row may not sample, else inf.

        Of 64 rows and 128,000 tokens this and a minimum take a third of the time of torch.where,
        which branches.
        """
        found = np.empty((num_rows, self.bits.shape[1] * 4, 8), np.float32)
        octets = self.bits.view(np.uint8)
        if len(self.rows) < num_rows:
            found[:] = np.inf
        for place, row in enumerate(self.rows.tolist()):
            # the other modes copy `out`
            np.take(_BOUNDS, octets[place], axis=0, out=found[row], mode="clip")
        return torch.from_numpy(found).flatten(1)[:, :vocab_size]

    def _mask(self, vocab_size: int, device: torch.device) -> Tensor:
        """Return bool [constrained, vocab] on `device`."""
        # the bits are an eighth of the bytes
        words = torch.from_numpy(self.bits.view(np.int32)).to(device)
        shifts = torch.arange(_WORD_BITS, device=device, dtype=torch.int32)
        mask = (words.unsqueeze(-1) >> shifts) & 1
        return mask.flatten(1)[:, :vocab_size].bool()


def _unpacked(bits: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return bool [rows, 32 * words]."""
    return np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little").view(np.bool_)


@dataclass(frozen=True, slots=True)
class PendingAllowed:
    """Masks that were asked for; they are made while the forward runs."""

    rows: NDArray[np.int64]
    pending: PendingMasks
    num_words: int  # of a row's bits
    # Place among the constrained rows -> end tokens that are kept for when nothing else is allowed
    late_ends: Mapping[int, tuple[int, ...]]

    def wait(self) -> Allowed:
        """Wait for the masks. Raises EngineFailure if the process that makes them is gone."""
        begun_s = time.monotonic()
        masks = self.pending.wait()
        waited_s = time.monotonic() - begun_s
        bits = np.zeros((len(self.rows), self.num_words), dtype=np.uint32)
        bits[:, : masks.bits.shape[1]] = masks.bits
        bits[list(masks.errors)] = _ALL  # so that the row can be computed, whatever for
        for place, ends in self.late_ends.items():
            if not masks.must_end[place]:
                for token in ends:
                    bits[place, token // _WORD_BITS] &= ~np.uint32(1 << token % _WORD_BITS)
        errors = {int(self.rows[place]): why for place, why in masks.errors.items()}
        return Allowed(self.rows, bits, masks.must_end, errors, waited_s)


class ConstrainedRows:
    """The table rows of one model whose requests have constraints."""

    def __init__(self, spec: ModelSpec, history: Tensor, client: MaskClient | None) -> None:
        """history: int32 [max_seqs, max_model_len + 1]. client: None where none can be admitted."""
        self._model = spec.name
        self._eos_token_ids = spec.eos_token_ids
        self._num_words = -(-spec.vocab_size // _WORD_BITS)
        self._history = history
        self._client = client
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
        self, table_rows: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> PendingAllowed | None:
        """Ask what the rows (arrays: [rows]) may sample behind `lengths` tokens; None: anything.

        Their tokens are in the history. Returns without waiting for the answer.
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
            asked.append(self._row(admission, int(lengths[row])))
        assert self._client is not None
        pending = self._client.begin(asked)
        return PendingAllowed(np.array(rows), pending, self._num_words, late_ends)

    def _row(self, admission: Admission, length: int) -> MaskRow:
        constraint: Constraint | None = admission.sampling.constraint
        assert constraint is not None
        output = self._history[admission.row, admission.num_prompt_tokens : length]
        tokens = output.cpu().numpy().astype(np.int32)  # a copy on the CPU too
        return MaskRow(self._model, admission.request_id, constraint, tokens)
