"""Three small models in this process and its workers, without Ray or HTTP.

    python examples/serve_in_process.py [FOLDER]

The models are the demo's: random weights, so that their text is noise. They are made in FOLDER (by
default .demo/models) at the first run. Needs the extra `serve`.
"""

import asyncio
import sys
from pathlib import Path

import yaml

from muxcluster import Config, SamplingParams, Unit, load_config
from muxcluster.demo.setup import MODELS, build_models

PROMPT = "Once upon a time"


def configured(folder: Path) -> Config:
    """Make the models and a configuration of them."""
    paths = build_models(folder, seed=0)
    models = [
        {"name": model.name, "path": str(path.resolve()), "max_model_len": 384}
        for model, path in zip(MODELS, paths, strict=True)
    ]
    file = folder / "muxcluster.yaml"
    file.write_text(yaml.safe_dump({"models": models}), encoding="utf-8")
    return load_config(file)


async def main(folder: Path) -> None:
    """Stream one answer, then ask all models at once."""
    async with Unit(configured(folder)) as unit:
        greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        async for output in unit.stream("tiny-llama", PROMPT, greedy):
            print(output.text, end="", flush=True)
        print()
        messages = [{"role": "user", "content": "Hello"}]
        params = SamplingParams(max_tokens=16, seed=7)
        answers = await asyncio.gather(
            *(unit.generate(model, messages, params) for model in unit.models)
        )
        for model, answer in zip(unit.models, answers, strict=True):
            print(f"{model}: {len(answer.tokens)} tokens, {answer.finish_reason}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/models")))
