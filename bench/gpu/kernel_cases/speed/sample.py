"""Times of sampling against a sort, and against merely reading the logits."""

from collections.abc import Callable

import torch
from torch import Tensor

from bench.gpu.running.run import Run
from muxcluster.kernels.sample import sample

SHAPES = ((64, 128_256), (64, 32_000), (1, 128_256), (256, 128_256))
LIMITS = ("top_p 0.9", "top_k 50, top_p 0.9", "no limit")


def sample_case(rows: int, vocab: int, limits: str) -> str:
    return f"{rows} x {vocab}, {limits}"


def time_sample(run: Run) -> None:
    """Logits are normal with deviation 3: a nucleus of a few thousand tokens."""
    for rows, vocab in ((2, 300),) if run.tiny else SHAPES:
        logits = 3 * torch.randn(rows, vocab, device=run.device)
        for limits in LIMITS:
            _time(run, logits, limits)


def _time(run: Run, logits: Tensor, limits: str) -> None:
    rows, vocab = logits.shape
    ones = torch.ones(rows, dtype=torch.float64, device=run.device)
    top_k = torch.full_like(ones, 50 if "top_k" in limits else vocab, dtype=torch.int64)
    top_p = ones * (0.9 if "top_p" in limits else 1.0)
    uniform = torch.rand(rows, dtype=torch.float64, device=run.device)
    temperature, min_p = 0.8 * ones, 0 * ones
    run.time(
        "sample",
        sample_case(rows, vocab, limits),
        lambda: sample(logits, temperature, top_k, top_p, min_p, uniform),
        moved=logits.nbytes,
        rivals={
            "sort": _by_sort(logits, temperature, top_k, top_p, uniform),
            "argmax": lambda: logits.argmax(-1),
        },
    )


def _by_sort(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor
) -> Callable[[], Tensor]:
    """Softmax, sort, running sums: what samplers without a kernel of their own do."""
    heat, share, number = temperature.float()[:, None], top_p.float()[:, None], uniform.float()
    ranks = torch.arange(logits.shape[1], device=logits.device)

    def draw() -> Tensor:
        probabilities, tokens = (logits / heat).softmax(-1).sort(-1, descending=True)
        probabilities = probabilities * (ranks < top_k[:, None])
        sums = probabilities.cumsum(-1)
        kept = probabilities * (sums - probabilities < share * sums[:, -1:])
        sums = kept.cumsum(-1)
        place = torch.searchsorted(sums, number[:, None] * sums[:, -1:], right=True)
        return tokens.gather(1, place.clamp_(max=logits.shape[1] - 1))

    return draw


PARTS = {"sample": time_sample}
