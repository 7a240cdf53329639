"""The child process of `SpeedProbe`: times forwards of a random Llama, once for each line it reads.

python -m bench.fidelity.fixed_work THREADS
"""

import json
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.fidelity.setups import MAX_LEN, SHAPES
from muxcluster.engine.decoders.torch_fusing import fuse, is_fusible
from muxcluster.engine.forward.attention import ATTENTION_NAME
from muxcluster.engine.forward.paged_forward import Forward, TokenForward
from muxcluster.engine.load.packing_cpu import pack_linears
from muxcluster.engine.load.parity import WholeAttention

_DECODE_TOKENS, _PREFILL_TOKENS = 4, 96
_WARM_UPS = 3


def forward() -> TokenForward:
    """Return a random model of the bench as the engine would run it."""
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES["even"], attn_implementation=ATTENTION_NAME)
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    if is_fusible(model):
        return fuse(model, MAX_LEN)
    pack_linears(model)
    return Forward(model)


def step(model: TokenForward, num_tokens: int) -> Callable[[], None]:
    """Return a forward of so many tokens of one sequence, logits of the last."""
    tokens = torch.arange(num_tokens)
    wanted = tokens[-1:]

    def run() -> None:
        model.logits(tokens, tokens, WholeAttention(), wanted)

    return run


def seconds(run: Callable[[], None], repeats: int) -> float:
    """Return the median time of `run`, after a few that do not count."""
    taken = []
    for _ in range(_WARM_UPS + repeats):
        begun_s = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun_s)
    return median(taken[_WARM_UPS:])


@torch.inference_mode()
def main() -> None:
    """Answer each line, a number of repeats, by [decode, prefill] seconds, until there is none."""
    model = forward()
    torch.set_num_threads(int(sys.argv[1]))
    steps = [step(model, each) for each in (_DECODE_TOKENS, _PREFILL_TOKENS)]
    for line in sys.stdin:
        print(json.dumps([seconds(each, int(line)) for each in steps]), flush=True)


if __name__ == "__main__":
    main()
