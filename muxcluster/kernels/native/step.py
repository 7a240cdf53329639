"""Steps of a decoder of Llama's kind in one call of the C++ kernels."""

import logging
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, Structure, byref, c_double, c_int, c_int64, c_void_p
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import silu

from muxcluster.kernels.native.attention import stored_as
from muxcluster.kernels.native.build import library
from muxcluster.kernels.native.products import Panels, kind_of, panels

logger = logging.getLogger(__name__)

Run = Callable[..., int]  # `mux_decoder_step`


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What adapters add to some outputs of a linear, as `low_rank_update` says it.

    down: [ranks, in], up: [ranks, out], contiguous, of the model's dtype. starts: int32 [adapters +
    1]. first: of the linear's outputs. The numbers may change between two steps.
    """

    first: int
    down: Tensor
    up: Tensor
    starts: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """A product of a step. bias: fp32 [out]. rounds: inputs, to 8 bits."""

    weight: Panels
    bias: Tensor | None = None
    rounds: bool = False
    updates: tuple[Update, ...] = ()  # of adapters, all for as many


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """Root mean square norm of rows. weight: fp32 [row]."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """One layer; fields as of `torch_decoder.FusedLayer`."""

    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
    attention_norm: Norm
    mlp_norm: Norm
    # of each head, None where the model has none
    query_norm: Norm | None
    key_norm: Norm | None
    number: int  # of the layer in the tables
    scale: float
    sliding_window: int | None
    soft_cap: float | None


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """New tokens, a row each, and where their sequences' keys and values lie.

    Tokens of one sequence see those before them, of the same step, too.
    """

    # sequences: rows of `tables`; sequences, positions: int64 [rows]
    sequences: Tensor
    positions: Tensor
    halves: Tensor  # the pool as of `half_rows`
    tables: Tensor  # int32 [max_seqs, layers, kv_heads, max_columns], columns contiguous
    from_right: Tensor  # bool [max_seqs]
    block_tokens: int


class DecoderStep:
    """A decoder whose steps run in one call."""

    def __init__(
        self,
        layers: Sequence[DecoderLayer],
        embeddings: Tensor,
        turns: Tensor,
        norm: Norm,
        head: Linear,
        heads: tuple[int, int],
        run: Run | None = None,
    ) -> None:
        """embeddings: fp32 or bf16 [vocab, hidden], whose dtype is the model's.

        turns: complex64 [positions, 1, head_dim / 2]. heads: heads and KV heads, alike in all
        layers. run: the kernel, None: the one that was tried here. Raises RuntimeError where
        `is_available()` is false.
        """
        found = run or _function()
        if found is None:
            raise RuntimeError("the native kernels are not available here")
        self._run = found
        self._embeddings = embeddings.contiguous()
        self._turns = turns.contiguous()
        self._num_out = head.weight.shape[0]
        self._kept = (tuple(layers), norm, head)  # alive while C++ has their addresses
        self._layers = (_Layer * len(layers))(*map(_layer, layers))
        adapters = {
            len(update.starts) - 1 for linear in _linears(layers) for update in linear.updates
        }
        self._decoder = _Decoder(
            layers=self._layers,
            embeddings=self._embeddings.data_ptr(),
            turns=self._turns.data_ptr(),
            norm=_norm(norm),
            head=_linear(head),
            num_layers=len(layers),
            vocab=len(embeddings),
            num_positions=len(turns),
            hidden=embeddings.shape[1],
            heads=heads[0],
            kv_heads=heads[1],
            head_dim=2 * turns.shape[-1],
            is_bf16=embeddings.dtype == torch.bfloat16,
            num_adapters=min(adapters, default=0),
        )

    def logits(
        self,
        tokens: Tensor,
        rows: StepRows,
        wanted: Tensor,
        out: Tensor | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """Return fp32 logits [wanted, vocab], and write the tokens' keys and values.

        tokens: int64 [rows], which follow what is in the pool. wanted: int64, the rows whose logits
        are asked for. out: contiguous fp32 of the result's shape, filled and returned. adapters:
        int32 [rows], below 0 for none; None: no row has one. Uses torch's number of threads. Raises
        IndexError where a token, sequence, position or adapter is outside of its tensor, ValueError
        for another number of adapters than rows.
        """
        if out is None or not out.is_contiguous():
            found = torch.empty((len(wanted), self._num_out))
        else:
            found = out
        halves, tables = rows.halves, rows.tables
        indices = [each.contiguous() for each in (tokens, rows.sequences, rows.positions, wanted)]
        right = rows.from_right.contiguous()
        if adapters is not None and len(adapters) != len(tokens):
            raise ValueError(f"{len(adapters)} adapters of {len(tokens)} rows")
        mine = None if adapters is None else adapters.contiguous()
        asked = _Rows(
            *(each.data_ptr() for each in indices),
            None if mine is None else mine.data_ptr(),
            len(tokens),
            len(wanted),
        )
        pool = _Pool(
            halves.data_ptr(),
            tables.data_ptr(),
            right.data_ptr(),
            2 * halves.stride(0) * halves.itemsize,
            rows.block_tokens,
            tables.shape[0],
            tables.shape[3],
            *tables.stride()[:3],
            stored_as(halves),
        )
        threads = torch.get_num_threads()
        if self._run(
            byref(self._decoder), byref(asked), byref(pool), c_void_p(found.data_ptr()), threads
        ):
            raise IndexError("a token, sequence, position or adapter is outside of its tensor")
        return found if out is None or found is out else out.copy_(found)


def is_available() -> bool:
    """Return whether a `DecoderStep` can be made here; the first call may compile, for seconds."""
    return _function() is not None


# These structures are those of step.cpp.


class _Update(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("down", "up", "starts")),
        *((name, c_int64) for name in ("first", "num_out")),
    )


class _Linear(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("values", "scales", "zeros", "bias")),
        ("updates", POINTER(_Update)),
        *((name, c_int64) for name in ("num_in", "num_out", "group", "kind", "rounds")),
        ("num_updates", c_int64),
    )


class _Norm(Structure):
    _fields_ = (("weight", c_void_p), ("eps", c_double))


class _Layer(Structure):
    _fields_ = (
        *((name, _Linear) for name in ("qkv", "output", "gate_up", "down")),
        *((name, _Norm) for name in ("attention", "mlp", "query", "key")),
        *((name, c_double) for name in ("scale", "soft_cap")),
        *((name, c_int64) for name in ("window", "number")),
    )


class _Decoder(Structure):
    _fields_ = (
        ("layers", POINTER(_Layer)),
        ("embeddings", c_void_p),
        ("turns", c_void_p),
        ("norm", _Norm),
        ("head", _Linear),
        *((name, c_int64) for name in ("num_layers", "vocab", "num_positions", "hidden")),
        *((name, c_int64) for name in ("heads", "kv_heads", "head_dim", "is_bf16")),
        ("num_adapters", c_int64),
    )


class _Rows(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("tokens", "sequences", "positions", "wanted", "adapters")),
        *((name, c_int64) for name in ("count", "num_wanted")),
    )


class _Pool(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("blocks", "tables", "from_right")),
        *((name, c_int64) for name in ("block_bytes", "block_tokens", "num_sequences", "columns")),
        *((name, c_int64) for name in ("per_sequence", "per_layer", "per_head", "stored")),
    )


def _linear(linear: Linear) -> _Linear:
    weight = linear.weight
    tensors = (weight.values, weight.scales, weight.zeros, linear.bias)
    addresses = (None if each is None else each.data_ptr() for each in tensors)
    num_out, num_in = weight.shape
    updates = (_Update * len(linear.updates))(*map(_update, linear.updates))
    sizes = (num_in, num_out, weight.group, kind_of(weight), linear.rounds, len(updates))
    return _Linear(*addresses, updates, *sizes)


def _update(update: Update) -> _Update:
    tensors = (update.down, update.up, update.starts)
    return _Update(*(each.data_ptr() for each in tensors), update.first, update.up.shape[1])


def _norm(norm: Norm | None) -> _Norm:
    return _Norm(None, 0.0) if norm is None else _Norm(norm.weight.data_ptr(), norm.eps)


def _linears(layers: Sequence[DecoderLayer]) -> Iterator[Linear]:
    for layer in layers:
        yield from (layer.qkv, layer.output, layer.gate_up, layer.down)


def _layer(layer: DecoderLayer) -> _Layer:
    linears = (layer.qkv, layer.output, layer.gate_up, layer.down)
    norms = (layer.attention_norm, layer.mlp_norm, layer.query_norm, layer.key_norm)
    return _Layer(
        *map(_linear, linears),
        *map(_norm, norms),
        layer.scale,
        layer.soft_cap or 0.0,
        layer.sliding_window or 0,
        layer.number,
    )


@lru_cache
def _function() -> Run | None:
    found = library()
    if found is None:
        return None
    function: Run = found.mux_decoder_step
    found.mux_decoder_step.argtypes = (c_void_p, c_void_p, c_void_p, c_void_p, c_int)
    found.mux_decoder_step.restype = c_int
    if not _is_right(function):
        logger.warning(
            "native kernels: steps of decoders are wrong on this machine; they are torch's"
        )
        return None
    return function


@torch.no_grad()
def _is_right(run: Run) -> bool:
    """Return whether three tokens, one after the other, get the logits that torch computes."""
    generator = torch.Generator().manual_seed(0)
    num, hidden, heads, size, inner, vocab, eps, scale = 3, 16, 2, 8, 24, 35, 1e-5, 0.3

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) / 2

    def linear(num_out: int, num_in: int) -> tuple[Tensor, Linear]:
        weight = random(num_out, num_in)
        return weight.double(), Linear(panels(weight))

    made = [
        linear((heads + 2) * size, hidden),
        linear(hidden, heads * size),
        linear(2 * inner, hidden),
        linear(hidden, inner),
        linear(vocab, hidden),
    ]
    exact, linears = [weight for weight, _ in made], [stored for _, stored in made]
    norm, embeddings, angles = Norm(random(hidden), eps), random(vocab, hidden), random(num, 1, 4)
    turns = torch.polar(torch.ones_like(angles), angles)
    qkv, output, gate_up, down, head = linears
    starts = torch.tensor([0, 0, 2], dtype=torch.int32)
    of_values = Update((heads + 1) * size, random(2, hidden), random(2, size), starts)
    of_down = Update(0, random(2, inner), random(2, hidden), starts)
    layer = DecoderLayer(
        replace(qkv, updates=(of_values,)),
        output,
        gate_up,
        replace(down, updates=(of_down,)),
        attention_norm=norm,
        mlp_norm=norm,
        query_norm=None,
        key_norm=None,
        number=0,
        scale=scale,
        sliding_window=None,
        soft_cap=None,
    )
    step = DecoderStep((layer,), embeddings, turns, norm, head, (heads, 1), run)
    tables, right = torch.tensor([[[[1, 0]]]], dtype=torch.int32), torch.tensor([True])
    halves, tokens, zero = torch.zeros((4, 2 * size)), torch.tensor([3, 30, 7]), torch.tensor([0])
    found = [
        step.logits(
            tokens[at : at + 1],
            StepRows(zero, zero + at, halves, tables, right, 2),
            zero,
            adapters=torch.tensor([1], dtype=torch.int32),
        )
        for at in range(num)
    ]

    def added(rows: Tensor, update: Update) -> Tensor:
        return rows @ update.down.double().T @ update.up.double()

    def normed(rows: Tensor) -> Tensor:
        return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt() * norm.weight

    rows = embeddings[tokens].double()
    projected = (normed(rows) @ exact[0].T).view(num, heads + 2, size)
    projected[:, -1] += added(normed(rows), of_values)
    pairs = torch.view_as_complex(projected[:, :-1].reshape(num, heads + 1, -1, 2))
    turned = torch.view_as_real(pairs * turns.to(torch.complex128)).flatten(2)
    scores = scale * torch.einsum("qhd,kd->hqk", turned[:, :-1], turned[:, -1])
    scores.masked_fill_(torch.ones(num, num).triu(1).bool(), -torch.inf)
    attended = torch.einsum("hqk,kd->qhd", scores.softmax(-1), projected[:, -1])
    rows = rows + attended.flatten(1) @ exact[1].T
    gate, up = (normed(rows) @ exact[2].T).chunk(2, dim=-1)
    inner_rows = silu(gate) * up
    rows = rows + inner_rows @ exact[3].T + added(inner_rows, of_down)
    expected = normed(rows) @ exact[4].T
    return float((torch.cat(found) - expected).abs().max()) < 1e-4 * float(expected.abs().max())
