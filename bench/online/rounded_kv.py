"""Keys and values in 8 bits: sequences that fit a pool, and the perplexity of a trained model.

The perplexity is that of bytes of held-out text, by the engine's own attention over its pool, for a
small Llama that is trained here on the rest of the text.
"""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from muxcluster.config.load import load_config
from muxcluster.config.planner_input import nodes_of, problem
from muxcluster.config.planning import plan_for
from muxcluster.config.units import unit_specs
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.forward.batch import token_batch
from muxcluster.engine.forward.cpu_attention import PlannedAttention
from muxcluster.engine.forward.paged_forward import Forward
from muxcluster.engine.load.paged_loading import load_model
from muxcluster.engine.memory.arena import Arena
from muxcluster.placement import specs
from muxcluster.scheduling.scheduler import UnitScheduler

KV_DTYPES = ("auto", "int8", "fp8_e4m3")
NAME = "m"
# Of the model that is trained: 0.6 million parameters, heads of the usual 64.
SHAPE: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 512,
}
_WINDOW = 256  # bytes of a sequence
_TRAINED_ROWS, _EVALUATED_ROWS = 8, 8
_LEARNING_RATE = 3e-3
_HELD_OUT = 0.05

# Of the sequences that are counted.
_PROMPT_TOKENS, _MOST_SEQUENCES = 1000, 160


def sequences_that_fit(kv_dtype: str) -> int:
    """Sequences of 1,000 tokens of an 8B Llama in 16 bits that the scheduler lets into 8 GiB of KV
    at once."""
    model = {"name": NAME, "shape": "llama-3-8b", "dtype": "bfloat16", "kv_dtype": kv_dtype}
    content = {
        "models": [{**model, "max_seqs": _MOST_SEQUENCES, "max_model_len": 1024}],
        "cluster": {"nodes": [{"name": "a", "gpus": 1, "gpu": "A100-80GB"}]},
        "policy": {
            "scheduler": "temporal",
            "kv_gb": 8,
            "token_budget": _PROMPT_TOKENS * _MOST_SEQUENCES,
            "max_decode_rows": _MOST_SEQUENCES,
        },
    }
    with tempfile.TemporaryDirectory(prefix="bench-kv-") as folder:
        file = Path(folder) / "kv.yaml"
        file.write_text(yaml.safe_dump(content))
        config = load_config(file)
    (spec,) = specs.unit_specs(problem(config, nodes_of(config)), plan_for(config))
    scheduler = UnitScheduler(spec, only_counts=True)
    sampling = SamplingParams(temperature=0.0, max_tokens=24)
    for number in range(_MOST_SEQUENCES):
        prompt = np.full(_PROMPT_TOKENS, number, dtype=np.int32)
        scheduler.add(Request(str(number), NAME, prompt, sampling), 0.0)
    (job,) = scheduler.next_jobs(0.0)
    return len(job.rows)


def read_text(data: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The text's bytes to train on and those held out, int64 each."""
    content = (data / "tinyshakespeare" / "input.first90pct.txt").read_bytes()
    text = torch.frombuffer(bytearray(content), dtype=torch.uint8).long()
    end = int(len(text) * (1 - _HELD_OUT))
    return text[:end], text[end:]


def train(text: torch.Tensor, folder: Path, num_steps: int, seed: int) -> tuple[Path, float]:
    """Train for so many steps; return the model's directory and the last steps' perplexity."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, num_steps)
    losses = []
    start_s = time.monotonic()
    for step in range(num_steps):
        starts = torch.randint(len(text) - _WINDOW - 1, (_TRAINED_ROWS, 1))
        rows = text[starts + torch.arange(_WINDOW + 1)]
        logits = model(rows[:, :-1]).logits
        loss = cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 49:
            seconds = time.monotonic() - start_s
            print(f"step {step + 1}: loss {losses[-1]:.3f}, {seconds:.0f} s", flush=True)
    path = folder / "trained"
    model.save_pretrained(path)
    return path, math.exp(float(np.mean(losses[-20:])))


@torch.inference_mode()
def losses_of(path: Path, text: torch.Tensor, kv_dtype: str) -> list[float]:
    """Mean loss (nats a byte) of each window of the text, the engine's attention over its pool.

    As many whole windows as fill batches.
    """
    spec = _served(path, kv_dtype)
    (model,) = spec.models
    arena = Arena(spec)
    mine = arena.model(NAME)
    shape = mine.tables[:_EVALUATED_ROWS].shape
    # Any blocks will do: here those of a row one after the other.
    blocks = torch.arange(shape.numel(), dtype=torch.int32).view(shape)
    if len(arena.pool) < shape.numel():
        raise RuntimeError(f"a pool of {len(arena.pool)} blocks, {shape.numel()} are needed")
    mine.tables[:_EVALUATED_ROWS] = blocks
    forward = Forward(load_model(model, "cpu"))
    table_rows = np.arange(_EVALUATED_ROWS, dtype=np.int32)
    zeros = np.zeros(_EVALUATED_ROWS, dtype=np.int32)
    batch = token_batch(table_rows, zeros, zeros + _WINDOW, torch.device("cpu"))
    found: list[float] = []
    size = _EVALUATED_ROWS * _WINDOW
    for start in range(0, len(text) - size, size):
        tokens = text[start : start + size]
        attention = PlannedAttention(arena.pool, mine, batch)
        logits = forward.logits(tokens, batch.positions, attention, None)
        wanted = tokens.view(_EVALUATED_ROWS, -1)[:, 1:]
        given = logits.view(_EVALUATED_ROWS, _WINDOW, -1)[:, :-1].double()
        losses = cross_entropy(given.flatten(0, 1), wanted.flatten(), reduction="none")
        found += losses.view(_EVALUATED_ROWS, -1).mean(1).tolist()
    return found


def perplexity(losses: Sequence[float]) -> float:
    return math.exp(float(np.mean(losses)))


def _served(path: Path, kv_dtype: str) -> UnitSpec:
    """The unit that `serve` would start for the model."""
    model = {"name": NAME, "path": str(path), "dtype": "float32", "kv_dtype": kv_dtype}
    lengths = {"prompt_tokens": 80, "output_tokens": 80, "max_model_len": _WINDOW}
    content = {"models": [{**model, **lengths, "max_seqs": 4 * _EVALUATED_ROWS}]}
    file = path.parent / f"{kv_dtype}.yaml"
    file.write_text(yaml.safe_dump(content))
    config = load_config(file)
    (spec,) = unit_specs(config, plan_for(config))
    return spec
