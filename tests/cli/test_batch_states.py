"""`muxcluster batch run` of a model that keeps states in place of keys and values."""

from pathlib import Path

import pytest

from muxcluster.demo.models import build_model
from muxcluster.text.tokenizer import Tokenizer
from tests.cli.batches import OUTPUT_TOKENS, texts, write_config, write_job
from tests.cli.calls import call
from tests.engine.children.preloaded import fast_children, preloaded
from tests.oracles import GreedyOracle

__all__ = ["fast_children", "preloaded"]

pytestmark = pytest.mark.usefixtures("fast_children")


@pytest.mark.slow
def test_answers_are_hugging_faces(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    directory = build_model(tmp_path / "mamba", "mamba", seed=3)
    asked = [("mamba", [20 + i, *range(30, 34 + 5 * i)]) for i in range(4)]
    config = write_config(tmp_path / "one.yaml", {"mamba": directory})
    file, output = write_job(tmp_path / "in.jsonl", asked), tmp_path / "out.jsonl"
    code, _, err = call(capsys, "batch", "run", file, "-o", str(output), "--config", config)
    assert code == 0, err
    oracle, tokenizer = GreedyOracle(directory), Tokenizer.load(directory)
    found = texts(output)
    assert len(found) == len(asked)
    for number, (_, prompt) in enumerate(asked):
        expected, _ = oracle.continue_(prompt, OUTPUT_TOKENS)
        said = found[f"r-{number}"].strip("\ufffd")
        assert said == tokenizer.decode(expected, True).strip("\ufffd"), number
