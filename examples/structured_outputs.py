"""Answers of a set form: a JSON schema, a choice, a regular expression.

    python examples/structured_outputs.py [FOLDER]

The model has random weights, so that what it says is noise, and the form is the constraint's doing
alone. It is made in FOLDER (by default .demo/structured) at the first run. Needs the extra `serve`.
"""

import asyncio
import sys
from pathlib import Path

import yaml
from pydantic import BaseModel, Field

from muxcluster import Config, RequestError, SamplingParams, Unit, load_config
from muxcluster.demo.models import build_model

NAME = "tiny-llama"
MESSAGES = [{"role": "user", "content": "Anne is 41 and lives in Rome."}]


class Person(BaseModel):
    """What is wanted."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)
    city: str = Field(max_length=12)


def configured(folder: Path) -> Config:
    """Make the model and a configuration of it."""
    if not (folder / NAME).is_dir():
        build_model(folder / NAME, "llama")
    file = folder / "muxcluster.yaml"
    model = {"name": NAME, "path": NAME, "max_model_len": 2048, "max_seqs": 4}
    content = {"models": [model], "policy": {"partition": "none"}}
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_config(file)


async def main(folder: Path) -> None:
    """Ask for a person, for one of two words, and for a date."""
    async with Unit(configured(folder)) as unit:
        # room for the whitespace between the parts of JSON, of which this model is fond
        wanted = {"json": Person.model_json_schema()}
        params = SamplingParams(structured_outputs=wanted, max_tokens=1500, seed=1)
        answer = await unit.generate(NAME, MESSAGES, params)
        print("person:", Person.model_validate_json(answer.text))
        choice = SamplingParams(structured_outputs={"choice": ["yes", "no"]})
        print("choice:", (await unit.generate(NAME, "Is it raining?", choice)).text)
        date = SamplingParams(
            structured_outputs={"regex": r"20\d\d-(0[1-9]|1[0-2])"}, max_tokens=32
        )
        print("date:", (await unit.generate(NAME, "It was in", date)).text)
        try:
            SamplingParams(structured_outputs={"json": {"type": "persn"}})
        except RequestError as error:
            print("refused:", error)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/structured")))
