"""A unit in this process: the tokens of Hugging Face, streams, chats, stops, errors, the end."""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from muxcluster import (
    ConfigError,
    EngineFailure,
    LoadError,
    Output,
    RequestError,
    SamplingParams,
    Unavailable,
    Unit,
    load_config,
    plan,
)
from muxcluster.text.tokenizer import Tokenizer
from tests.api.conftest import NAME
from tests.engine.live_units import children

PROMPT = "Once upon a time"
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def test_requests_of_a_unit(folder: Path) -> None:
    """One unit for all of it: loading takes most of the time."""

    async def main() -> None:
        before = set(children(os.getpid()).values())
        async with Unit(load_config(folder / "muxcluster.yaml")) as unit:
            assert unit.models == (NAME,)
            await check_tokens(unit, folder)
            await check_many(unit)
            await check_stop(unit)
            await check_constraints(unit)
            await check_refusals(unit)
            assert set(children(os.getpid()).values()) - before
            left_open = unit.stream(NAME, PROMPT, SamplingParams(max_tokens=200, ignore_eos=True))
            await anext(left_open)
        with pytest.raises(EngineFailure, match="closed"):
            async for _ in left_open:
                pass
        with pytest.raises(Unavailable, match="not open"):
            await unit.generate(NAME, PROMPT)
        with pytest.raises(RuntimeError, match="once"):
            await unit.__aenter__()
        # a process that was only starting ends a moment later
        for _ in range(300):
            if set(children(os.getpid()).values()) <= before:
                break
            await asyncio.sleep(0.1)
        assert set(children(os.getpid()).values()) <= before

    asyncio.run(main())


async def check_tokens(unit: Unit, folder: Path) -> None:
    """Text and token ids as prompt give the tokens of Hugging Face's own greedy loop."""
    path = folder / NAME
    ids = Tokenizer.load(path).encode(PROMPT)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    wanted = model.generate(
        torch.tensor([ids]), max_new_tokens=12, min_new_tokens=12, do_sample=False
    )[0, len(ids) :].tolist()
    parts = [output async for output in unit.stream(NAME, PROMPT, GREEDY)]
    assert [token for part in parts for token in part.tokens] == wanted
    assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    whole = await unit.generate(NAME, ids, GREEDY)
    assert whole.tokens == tuple(wanted) and whole.finish_reason == "length"
    assert whole.text == "".join(part.text for part in parts)


async def check_many(unit: Unit) -> None:
    """Concurrent chats with the same seed are alike, with another they are not."""
    messages = [{"role": "user", "content": "Hello"}]
    seeds = (3, 3, 4)
    answers = await asyncio.gather(
        *(
            unit.generate(NAME, messages, SamplingParams(max_tokens=16, seed=seed, ignore_eos=True))
            for seed in seeds
        )
    )
    assert answers[0].tokens == answers[1].tokens != answers[2].tokens


async def check_stop(unit: Unit) -> None:
    text = (await unit.generate(NAME, PROMPT, GREEDY)).text
    stop = text[len(text) // 2 :][:3]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=(stop,))
    cut = await unit.generate(NAME, PROMPT, params)
    assert cut.text == text[: text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


async def check_constraints(unit: Unit) -> None:
    """Outputs have the form asked for; what is no form is refused when the parameters are made."""
    regex = {"regex": "[0-9]{3}-[ab]"}
    params = SamplingParams(structured_outputs=regex, max_tokens=40, seed=1)
    parts = [output async for output in unit.stream(NAME, PROMPT, params)]
    assert re.fullmatch(regex["regex"], "".join(part.text for part in parts))
    assert parts[-1].finish_reason == "stop"
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    params = SamplingParams(response_format=wanted, max_tokens=200, seed=1)
    messages = [{"role": "user", "content": "Yes?"}]
    assert json.loads((await unit.generate(NAME, messages, params)).text)["a"] in (True, False)
    for wrong in ({"json": {"type": "objct"}}, {"regex": "a", "choice": ["b"]}, {}):
        with pytest.raises(RequestError) as caught:
            SamplingParams(structured_outputs=wrong)
        assert caught.value.param.startswith("structured_outputs")
    with pytest.raises(RequestError):  # which the unit finds out
        await unit.generate(NAME, PROMPT, SamplingParams(structured_outputs={"regex": "(a"}))


async def check_refusals(unit: Unit) -> None:
    for prompt, param in (([], "prompt"), ([10**6], "prompt"), ([{}], None)):
        with pytest.raises(RequestError) as caught:
            await unit.generate(NAME, prompt)
        assert param is None or caught.value.param == param
    with pytest.raises(RequestError, match="not served here; served: tiny-llama"):
        await unit.generate("other", PROMPT)
    with pytest.raises(RequestError, match="context"):
        await unit.generate(NAME, PROMPT, SamplingParams(max_tokens=10_000))


def test_which_unit_of_a_plan(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    node = "gpu: cpu, cores: 1, memory_gb: 4"
    file.write_text(
        f"models: [{{name: a, path: {folder / NAME}}}, {{name: b, path: {folder / NAME}}}]\n"
        f"cluster: {{nodes: [{{name: x, {node}}}, {{name: y, {node}}}]}}\n"
    )
    config = load_config(file)
    apart = plan(config, method="spatial", time_limit_s=0)
    first, second = (unit.id for unit in apart.units)
    with pytest.raises(ConfigError, match=f"has 2 units: name one of {first}, {second}"):
        Unit(config, apart)
    with pytest.raises(ConfigError, match="no unit 'z'"):
        Unit(config, apart, unit_id="z")
    models = [Unit(config, apart, unit_id=each).models for each in (first, second)]
    assert sorted(models) == [("a",), ("b",)]


def test_what_cannot_be_loaded_is_said_before_anything_starts(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_bytes((folder / NAME / "config.json").read_bytes())
    file = tmp_path / "muxcluster.yaml"
    file.write_text("models: [{name: m, path: empty}]\n")
    with pytest.raises(LoadError, match="empty"):
        Unit(load_config(file))


def test_outputs_add_up() -> None:
    parts = [Output("a", (1,)), Output("", (2,)), Output("b", (3,), "stop", "x", 4)]
    assert sum(parts[1:], parts[0]) == Output("ab", (1, 2, 3), "stop", "x", 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1.0), ("top_p", 0.0), ("max_tokens", "8"), ("stop", ("",)), ("min_p", 2)],
)
def test_wrong_sampling_is_refused_when_it_is_made(field: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert (caught.value.param or "").startswith(field)
