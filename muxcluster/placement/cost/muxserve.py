"""Reader of the profile that MuxServe published: LLaMA 7B to 65B on A100-80GB."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from muxcluster.placement.cost.profile import Cell, Phase, Profile, ProfiledModel
from muxcluster.placement.shapes.known import SHAPES

_PHASES: tuple[tuple[str, Phase], ...] = (
    ("prefill", "prefill"),
    ("decoding", "decode"),
)


def read_muxserve(path: Path) -> Profile:
    """`llama_a100_profile.json` (github.com/hao-ai-lab/MuxServe, examples/placement/llama.json).

    It maps model → number of GPUs → % of the SMs → batch → tokens → {prefill, decoding} in ms.
    Negative entries were not measured and are left out. Raises OSError, or ValueError in one line.
    """
    try:
        raw = json.loads(path.read_bytes())
        models = tuple(
            ProfiledModel(name=name, shape=SHAPES[name], cells=tuple(_cells(by_tp)))
            for name, by_tp in raw.items()
        )
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{path}: not MuxServe's profile (model -> GPUs -> % of SMs -> batch -> tokens -> "
            f"{{prefill, decoding}}): {reason}"
        ) from error
    return Profile(gpu="A100-80GB", itemsize=2, machine="MuxServe (published)", models=models)


def _cells(by_tp: dict[str, Any]) -> Iterator[Cell]:
    for tp, percent, batch, tokens, entry in _leaves(by_tp):
        for key, phase in _PHASES:
            if entry[key] > 0:
                yield Cell(
                    phase=phase,
                    tp=tp,
                    share=percent / 100,
                    batch=batch,
                    tokens=tokens,
                    seconds=(entry[key] / 1e3,),
                )


def _leaves(by_tp: dict[str, Any]) -> Iterator[tuple[int, int, int, int, dict[str, float]]]:
    for tp, by_percent in by_tp.items():
        for percent, by_batch in by_percent.items():
            for batch, by_tokens in by_batch.items():
                for tokens, entry in by_tokens.items():
                    yield int(tp), int(percent), int(batch), int(tokens), entry
