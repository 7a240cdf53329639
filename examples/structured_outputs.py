"""Answers of a set form from models with random weights: a JSON schema, a choice, a grammar.

    python examples/structured_outputs.py [FOLDER]

The models are the demo's, whose text is noise: that each answer has its form is due to the
constraint alone. They are made in FOLDER (by default .demo/models) at the first run. Needs the
extra `serve`.
"""

import asyncio
import json
import sys
from pathlib import Path

import yaml
from pydantic import BaseModel, Field

from muxcluster import Config, RequestError, SamplingParams, Unit, load_config
from muxcluster.demo.setup import MODELS, build_models

MESSAGES = [{"role": "user", "content": "Anne is 41 and lives in Rome."}]


class Person(BaseModel):
    """What is wanted."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)
    city: str = Field(max_length=12)


def configured(folder: Path) -> Config:
    """Make the models and a configuration of the first of them."""
    paths = build_models(folder, seed=0)
    model = {"name": MODELS[0].name, "path": str(paths[0].resolve()), "max_model_len": 384}
    file = folder / "structured.yaml"
    file.write_text(yaml.safe_dump({"models": [model]}), encoding="utf-8")
    return load_config(file)


async def main(folder: Path) -> None:
    """Ask for a person three times over, for one of two words, and for a date."""
    async with Unit(configured(folder)) as unit:
        (model,) = unit.models
        wanted = {"json": Person.model_json_schema()}
        for seed in range(3):
            params = SamplingParams(structured_outputs=wanted, max_tokens=300, seed=seed)
            answer = await unit.generate(model, MESSAGES, params)
            print("person:", json.dumps(Person.model_validate_json(answer.text).model_dump()))
        choice = SamplingParams(structured_outputs={"choice": ["yes", "no"]})
        print("choice:", (await unit.generate(model, "Is it raining?", choice)).text)
        date = SamplingParams(structured_outputs={"regex": r"20\d\d-[01]\d-[0-3]\d"})
        print("date:", (await unit.generate(model, "The day is", date)).text)
        try:
            SamplingParams(structured_outputs={"json": {"type": "persn"}})
        except RequestError as error:
            print("refused:", error)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/models")))
