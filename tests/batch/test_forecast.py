"""What a server predicts for a file: its tokens are the tokenizer's, and a part stands for all."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer

from muxcluster.batch.plan import forecast as module
from muxcluster.batch.plan.asked import Served
from muxcluster.batch.plan.forecast import AskedForecast, forecast
from muxcluster.batch.plan.planner import FedPlanner, PlanRules
from muxcluster.batch.plan.setting import settings_of
from muxcluster.batch.plan.survey import runs
from muxcluster.batch.service.planning import JobFile
from muxcluster.batch.store.intake import Limits
from muxcluster.config.load import load_config
from muxcluster.config.units import served_models
from muxcluster.core.errors import InvalidValue, NotReady, Overloaded
from muxcluster.http.calls.model_text import ModelTexts
from tests.batch.jobs import line_of
from tests.cli.batches import build_models

OUTPUT = 6


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Two models in one unit."""
    folder = tmp_path_factory.mktemp("two")
    models = [
        {"name": name, "path": str(path), "prompt_tokens": 40, "output_tokens": OUTPUT}
        for name, path in build_models(folder).items()
    ]
    file = folder / "muxcluster.yaml"
    policy = {"sharing": "always", "num_threads": 1, "kv_gb": 0.03}
    file.write_text(yaml.safe_dump({"models": models, "policy": policy}))
    config = load_config(file)
    settings = {each["name"]: settings_of(config, each["name"], None) for each in models}
    return Served(served_models(config), settings, lenient=False)


def _line(number: int, model: str, prompt: Any, **fields: Any) -> bytes:
    return line_of(str(number), body={"model": model, "prompt": prompt, **fields})


def _asked(
    folder: Path, served: Served, lines: Sequence[bytes], limits: Limits | None = None
) -> AskedForecast:
    file = folder / "job.jsonl"
    file.write_bytes(b"\n".join(lines))
    return AskedForecast(file, None, limits or Limits(), served, "dfs")


def _families(count: int, model: str, rng: random.Random) -> list[bytes]:
    """Requests of families of eight that share 64 tokens before eight of their own."""
    heads = [[rng.randrange(10, 500) for _ in range(64)] for _ in range(-(-count // 8))]
    prompts = [
        head + [rng.randrange(10, 500) for _ in range(8)] for head in heads for _ in "12345678"
    ]
    rng.shuffle(prompts)
    return [_line(i, model, prompt, max_tokens=4) for i, prompt in enumerate(prompts[:count])]


def test_tokens_are_the_tokenizers(served: Served, tmp_path: Path) -> None:
    texts = [f"question {i}: what is {i} times seven?" for i in range(30)]
    lines = [_line(i, "llama-a", text, max_tokens=5) for i, text in enumerate(texts)]
    lines += [_line(30, "llama-a", "no limit")]
    found = forecast(_asked(tmp_path, served, lines))
    folder = next(each.path for each in served.models if each.name == "llama-a")
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    true = sum(len(tokenizer.encode(text).ids) for text in (*texts, "no limit"))
    assert found["prompt_tokens"] == true
    # the configured mean stands for the line without a limit
    assert found["output_tokens"] == 30 * 5 + OUTPUT
    (model,) = found["models"]
    assert (model["num_lines"], model["num_read"], model["num_known_outputs"]) == (31, 31, 0)
    assert (model["model"], model["order"]) == ("llama-a", "dfs")
    assert found["duration_s"] == model["duration_s"] > 0
    (unit,) = model["units"]
    use = unit["use"]
    assert use["bin_s"] * len(use["compute"]) == pytest.approx(model["duration_s"])
    assert 0 < max(use["held"]) <= 1


def test_prefix_hits_are_those_of_families(served: Served, tmp_path: Path) -> None:
    rng = random.Random(1)
    shared = forecast(_asked(tmp_path, served, _families(256, "llama-a", rng)))
    # seven of eight find 64 of their 72 tokens: whole blocks alone count
    share = shared["cached_tokens"] / shared["prompt_tokens"]
    assert 0.6 < share <= 7 / 8 * 64 / 72
    alone = [
        _line(i, "llama-a", [rng.randrange(10, 500) for _ in range(72)], max_tokens=4)
        for i in range(256)
    ]
    apart = forecast(_asked(tmp_path, served, alone))
    assert apart["cached_tokens"] == 0
    assert apart["duration_s"] > shared["duration_s"]


def test_a_part_stands_for_a_long_job(served: Served, tmp_path: Path, monkeypatch) -> None:
    lines = _families(1600, "llama-a", random.Random(2))
    whole = forecast(_asked(tmp_path, served, lines))
    monkeypatch.setattr(module, "MOST_LINES", 400)
    part = forecast(_asked(tmp_path, served, lines))
    (model,) = part["models"]
    assert (model["num_lines"], model["num_read"]) == (1600, 400)
    assert part["prompt_tokens"] == pytest.approx(whole["prompt_tokens"], rel=0.02)
    assert part["output_tokens"] == pytest.approx(whole["output_tokens"], rel=0.02)
    assert part["duration_s"] == pytest.approx(whole["duration_s"], rel=0.15)
    # neighbours by family are read, so that they share as they do in the job
    assert part["cached_tokens"] == pytest.approx(whole["cached_tokens"], rel=0.15)


def test_models_of_one_unit_end_no_later_than_in_turn(served: Served, tmp_path: Path) -> None:
    rng = random.Random(3)
    lines = [*_families(96, "llama-a", rng), *_families(64, "qwen-b", rng)]
    found = forecast(_asked(tmp_path, served, lines))
    spans = {each["model"]: each["duration_s"] for each in found["models"]}
    assert spans.keys() == {"llama-a", "qwen-b"}
    assert max(spans.values()) <= found["duration_s"] <= sum(spans.values()) * (1 + 1e-9)
    assert found["num_lines"] == 160


def test_lines_that_cannot_run_are_told(served: Served, tmp_path: Path) -> None:
    good = _line(0, "llama-a", "hello", max_tokens=4)
    lines = [good, b"{no", _line(1, "gone", "x"), _line(2, "llama-a", "x", temperature=9)]
    asked = _asked(tmp_path, served, [*lines, b"", b"x" * 5000], Limits(line_bytes=4000))
    found = forecast(asked)
    assert (found["num_lines"], found["num_bad"]) == (6, 4)
    assert [each["line"] for each in found["bad_lines"]] == [2, 3, 5]
    assert "not served" in found["bad_lines"][1]["message"]
    nowhere = replace(served, settings={})
    found = forecast(replace(asked, served=nowhere))
    assert found["not_predicted"] == {"llama-a": 2}
    assert (found["duration_s"], found["models"]) == (0.0, [])
    with pytest.raises(InvalidValue, match=r"no line .*line 1: "):
        forecast(_asked(tmp_path, served, [b"{no"]))
    with pytest.raises(InvalidValue, match="more than 2 lines"):
        forecast(_asked(tmp_path, served, [good] * 3, Limits(lines=2)))


def test_runs_are_evenly_spaced_and_once() -> None:
    assert runs(5, 8, 4).tolist() == [0, 1, 2, 3, 4]
    places = runs(1000, 40, 4)
    assert len(np.unique(places)) == 40
    assert places[0] == 0
    assert places[-1] == 999


def test_one_file_at_a_time_in_a_process_that_ends(served: Served, tmp_path: Path) -> None:
    lines = _families(64, "llama-a", random.Random(4))
    asked = _asked(tmp_path, served, lines)

    async def run() -> dict[str, Any]:
        async def settings() -> Any:
            return served.settings

        planner = FedPlanner(
            ModelTexts.load(served.models),
            settings,
            None,  # type: ignore[arg-type]  # nothing is fed
            PlanRules("dfs", lenient=False, most_unplanned=8),
        )
        job = JobFile(asked.file, None, asked.limits)
        first = asyncio.create_task(planner.predict(job))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await planner.predict(job)
        found = await first
        with pytest.raises(InvalidValue, match="no line"):
            await planner.predict(replace(job, endpoint="/v1/chat/completions"))
        planner.close()
        return dict(found)

    found = asyncio.run(run())
    assert json.loads(json.dumps(found)) == found == forecast(asked)


def test_without_units_nothing_is_predicted(served: Served, tmp_path: Path) -> None:
    asked = _asked(tmp_path, served, [_line(0, "llama-a", "x")])

    async def none() -> Any:
        return {}

    planner = FedPlanner(
        ModelTexts.load(served.models),
        none,
        None,  # type: ignore[arg-type]  # nothing is fed
        PlanRules("dfs", lenient=False, most_unplanned=8),
    )
    with pytest.raises(NotReady, match="no units"):
        asyncio.run(planner.predict(JobFile(asked.file, None, asked.limits)))
    planner.close()
