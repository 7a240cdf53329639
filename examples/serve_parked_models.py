"""Four tiny models in the memory of two: the others are parked, and woken by a request.

    python examples/serve_parked_models.py [FOLDER]

The models have random weights, so that their text is noise. They and a muxcluster.yaml are made in
FOLDER (by default .demo/parked) at the first run; `muxcluster place` and `muxcluster serve` take
that file, too. Needs the extra `serve`.
"""

import asyncio
import sys
import time
from pathlib import Path

import yaml

from muxcluster import Config, SamplingParams, Unit, load_config
from muxcluster.demo.models import build_model

FAMILIES = ("llama", "opt", "qwen2", "qwen3")
RESIDENCY = ("always", "auto", "on-demand", "on-demand")


def configured(folder: Path) -> Config:
    """Make the models and a configuration of them."""
    models = []
    for family, residency in zip(FAMILIES, RESIDENCY, strict=True):
        name = f"tiny-{family}"
        if not (folder / name).is_dir():
            build_model(folder / name, family)
        models.append(
            {"name": name, "path": name, "residency": residency, "rate": 0.2}
            | {"prompt_tokens": 16, "output_tokens": 16, "max_model_len": 256, "max_seqs": 8}
        )
    node = {"name": "local", "gpu": "cpu", "memory_gb": 0.046}  # of which the engine takes half
    content = {
        "models": models,
        "cluster": {"nodes": [node]},
        "policy": {"partition": "threads", "token_budget": 256},
    }
    file = folder / "muxcluster.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_config(file)


async def main(folder: Path) -> None:
    """Ask one model after another: those that are parked answer later, with the same tokens."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    async with Unit(configured(folder)) as unit:
        for model in (*unit.models, unit.models[0]):
            start_s = time.monotonic()
            answer = await unit.generate(model, "Once upon a time", params)
            print(f"{model}: {len(answer.tokens)} tokens in {time.monotonic() - start_s:.2f} s")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/parked")))
