"""Whether a loaded model computes numbers: a file of NaN loads like any other."""

from pathlib import Path

import torch
from torch import Tensor, nn

from muxcluster.core.errors import LoadError
from muxcluster.core.unitspec import ModelSpec
from muxcluster.engine.forward import Forward
from muxcluster.engine.sameness import NUM_TOKENS, WholeAttention


@torch.inference_mode()
def check_forward(model: nn.Module, spec: ModelSpec) -> None:
    """Run random tokens through a model on the attention interface. Raises as `check_logits`."""
    device, count = next(model.parameters()).device, min(NUM_TOKENS, spec.max_model_len)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, spec.vocab_size, (count,), generator=generator).to(device)
    positions = torch.arange(count, device=device)
    check_logits(Forward(model).logits(tokens, positions, WholeAttention(), None), spec)


def check_logits(logits: Tensor, spec: ModelSpec) -> None:
    """Raises LoadError naming the model's folder where a row of `logits` [rows, vocab] holds NaN or
    +inf, or nothing finite."""
    num_broken = int((~logits.amax(-1).isfinite()).sum())
    if not num_broken:
        return
    hint = ", or too large for float16: try dtype bfloat16" if spec.dtype == "float16" else ""
    message = f"its logits are not finite (NaN or infinite): the weights are broken{hint}"
    raise LoadError(Path(spec.path), message)
