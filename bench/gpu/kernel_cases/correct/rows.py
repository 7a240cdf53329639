"""Row kernels against float64 on small cases: norm, rotary, activation, sampling, slot copy."""

from functools import partial

import torch
from torch import Tensor

from bench.gpu.kernel_cases.paged import block_tokens_of
from bench.gpu.running.run import Run, relative_error
from muxcluster.kernels.add_rms_norm import add_rms_norm
from muxcluster.kernels.rotary import HeadNorms, rotary
from muxcluster.kernels.sample import sample
from muxcluster.kernels.silu_mul import silu_mul
from muxcluster.kernels.slot_copy import slot_copy

ALLOWED = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
WIDTHS = (1, 127, 128, 4096, 5120)
CLOSE = 1e-6  # Running sums of weights, as shares, that are nearer than this may fall either way


def check_add_rms_norm(run: Run) -> None:
    """With and without residual, both orders of rounding."""
    for dtype, allowed in ALLOWED.items():
        for width in WIDTHS:
            for gemma in (False, True):
                call = partial(_add_rms_norm, run, dtype, width, gemma)
                run.check("add_rms_norm", f"{dtype} width {width} gemma {gemma}", call, allowed)


def _add_rms_norm(run: Run, dtype: torch.dtype, width: int, gemma: bool) -> float:
    hidden, residual = (_random(run, dtype, 37, width) for _ in range(2))
    weight = _random(run, dtype, 1, width)[0]
    added = (hidden + residual).double()
    inverse = (added.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
    expected = added * inverse * (weight.double() + gemma)
    result = add_rms_norm(hidden, weight, 1e-6, residual, gemma)
    return max(relative_error(result, expected), relative_error(residual, added))


def check_rotary(run: Run) -> None:
    """Both pairings; a part of the head; more heads of query than of key; with norms of heads."""
    for dtype, allowed in ALLOWED.items():
        for head_dim, turned in ((128, 128), (64, 64), (80, 32), (256, 256), (96, 96)):
            for interleaved in (False, True):
                case = f"{dtype} {turned} of {head_dim} interleaved {interleaved}"
                for normed in (False, True) if turned == head_dim else (False,):
                    call = partial(_rotary, run, dtype, head_dim, turned, interleaved, normed)
                    name = f"{case} normed" if normed else case
                    run.check("rotary", name, call, allowed)


def _rotary(
    run: Run,
    dtype: torch.dtype,
    head_dim: int,
    turned: int,
    interleaved: bool,
    normed: bool,
) -> float:
    query = torch.randn(13, 6, head_dim, device=run.device).to(dtype)
    key = torch.randn(13, 2, head_dim, device=run.device).to(dtype)
    angles = 10 * torch.rand(13, turned // 2, device=run.device)
    cos, sin = (torch.cat((part, part), -1) for part in (angles.cos(), angles.sin()))
    norms = HeadNorms(*_random(run, dtype, 2, head_dim), 1e-6) if normed else None
    weights = (norms.query, norms.key) if norms else (None, None)
    expected = []
    for tensor, weight in zip((query, key), weights, strict=True):
        part = tensor[..., :turned].double()
        if weight is not None:
            inverse = (part.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
            part = part * inverse * weight.double()
        pairs = part.unflatten(-1, (-1, 2)) if interleaved else part.unflatten(-1, (2, -1)).mT
        turn = torch.polar(torch.ones_like(angles.double()), angles.double()).unsqueeze(1)
        rotated = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
        rotated = rotated.flatten(-2) if interleaved else rotated.mT.flatten(-2)
        expected.append(torch.cat((rotated, tensor[..., turned:].double()), -1))
    rotary(query, key, cos, sin, interleaved, norms)
    return max(relative_error(*pair) for pair in zip((query, key), expected, strict=True))


def check_silu_mul(run: Run) -> None:
    """Two tensors and one, both activations."""
    for dtype, allowed in ALLOWED.items():
        for width in WIDTHS:
            for activation in ("silu", "gelu_tanh"):
                for together in (False, True):
                    case = f"{dtype} width {width} {activation} {'one tensor' if together else ''}"
                    call = partial(_silu_mul, run, dtype, width, activation, together)
                    run.check("silu_mul", case, call, allowed)


def _silu_mul(run: Run, dtype: torch.dtype, width: int, activation: str, together: bool) -> float:
    gate, up = (_random(run, dtype, 21, width) for _ in range(2))
    exact = gate.double()
    if activation == "silu":
        activated = exact / (1 + (-exact).exp())
    else:
        inner = (2 / torch.pi) ** 0.5 * (exact + 0.044715 * exact**3)
        activated = exact / 2 * (1 + inner.tanh())
    arguments = (torch.cat((gate, up), 1), None) if together else (gate, up)
    return relative_error(silu_mul(*arguments, activation), activated * up.double())


def check_sample(run: Run) -> None:
    """The share of rows whose token is not the sorted float64 reference's, near ties excused."""
    for vocab in (1, 127, 1000) if run.tiny else (1, 127, 32_000, 128_256):
        for rounded in (False, True):
            case = f"vocab {vocab} {'ties' if rounded else ''}"
            run.check("sample", case, partial(_sample, run, vocab, rounded), 0.0)


def _sample(run: Run, vocab: int, rounded: bool) -> float:
    rows, device = 96, run.device
    logits = (
        torch.randn(rows, vocab, device=device)
        * torch.linspace(0.2, 6, rows, device=device)[:, None]
    )
    logits = logits.round() if rounded else logits
    draw = partial(torch.rand, rows, dtype=torch.float64, device=device)
    temperature, top_p, min_p = 0.3 + draw(), draw(), 0.2 * draw()
    top_k = torch.randint(1, min(vocab, 60) + 1, (rows,), device=device)
    temperature[::8], top_p[::3], min_p[::2], top_k[1::2] = 0.0, 1.0, 0.0, vocab
    limits = (temperature, top_k, top_p, min_p, draw())
    tokens = sample(logits, *limits).tolist()
    wrong = excused = 0
    for row, token in enumerate(tokens):
        expected, margin = _sorted_draw(logits[row].cpu(), [float(each[row]) for each in limits])
        wrong += token != expected and margin > CLOSE
        excused += token != expected and margin <= CLOSE
    print(f"sample vocab {vocab}: {wrong} wrong, {excused} excused of {rows}", flush=True)
    return (wrong + (excused > rows // 20)) / rows


def _sorted_draw(logits: Tensor, limits: list[float]) -> tuple[int, float]:
    """The token by a full sort in float64, and how near a running sum was that decides."""
    temperature, top_k, top_p, min_p, uniform = limits
    if temperature == 0:
        return int((logits == logits.max()).nonzero()[0]), torch.inf
    scores = (logits - logits.max()) / torch.tensor(temperature, dtype=torch.float32)
    weights = scores.double().exp()
    ordered = scores.sort(descending=True).values
    lowest = ordered[int(top_k) - 1]
    if min_p > 0:
        lowest = torch.maximum(lowest, torch.tensor(min_p).double().log().float())
    margin = torch.inf
    if top_p < 1:
        left = ordered[ordered >= lowest]
        sums = left.double().exp().cumsum(0)
        sums = sums / sums[-1]
        margin = float((sums - top_p).abs().min())
        last = min(int((sums < top_p).sum()), len(left) - 1)
        lowest = torch.maximum(lowest, left[last])
    sums = torch.where(scores >= lowest, weights, 0.0).cumsum(0)
    sums = sums / sums[-1]
    margin = min(margin, float((sums - uniform).abs().min()))
    return int((sums > uniform).nonzero()[0]), margin


def check_slot_copy(run: Run) -> None:
    """Pool to staging, staging to pool and pool to pool; runs within blocks and across them."""
    for head_dim in (128, 64, 256, 80, 96):
        tokens = block_tokens_of(head_dim)
        for source, destination in ((tokens, 1), (1, tokens), (tokens, tokens)):
            case = f"{head_dim}, blocks of {source} to blocks of {destination}"
            call = partial(_slot_copy, run, 2 * head_dim, source, destination)
            run.check("slot_copy", case, call, 0.0)


def _slot_copy(run: Run, slot_bytes: int, source_tokens: int, destination_tokens: int) -> float:
    """How many bytes differ from a copy slot by slot, those beside the copied ones included."""
    source, destination = (
        torch.randint(0, 255, (160 // tokens, _block_bytes(slot_bytes, tokens)), dtype=torch.uint8)
        for tokens in (source_tokens, destination_tokens)
    )
    runs = [[3, 40, 1], [7, 1, 33], [64, 60, 0], [50, 80, 16]]
    expected = destination.clone()
    for first, to, count in runs:
        for step in range(count):
            slot = _slot(source, first + step, source_tokens, slot_bytes)
            _slot(expected, to + step, destination_tokens, slot_bytes).copy_(slot)
    copied = destination.to(run.device)
    slot_copy(
        copied,
        source.to(run.device),
        torch.tensor(runs, dtype=torch.int32, device=run.device),
        slot_bytes=slot_bytes,
        destination_tokens=destination_tokens,
        source_tokens=source_tokens,
    )
    return float((copied.cpu() != expected).sum())


def _block_bytes(slot_bytes: int, tokens: int) -> int:
    return 2 * slot_bytes if tokens == 1 else 2 * 2 * 16 * 128


def _slot(blocks: Tensor, slot: int, tokens: int, slot_bytes: int) -> Tensor:
    """K and V [2, slot_bytes] of one slot."""
    start = slot % tokens * slot_bytes
    return blocks[slot // tokens].view(2, -1)[:, start : start + slot_bytes]


def _random(run: Run, dtype: torch.dtype, rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, device=run.device).to(dtype)


PARTS = {
    "add_rms_norm": check_add_rms_norm,
    "rotary": check_rotary,
    "silu_mul": check_silu_mul,
    "sample": check_sample,
    "slot_copy": check_slot_copy,
}
