"""Steps of a GPU with adapters, with a tape in the place of CUDA graphs."""

from pathlib import Path

import pytest

from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import AdapterSpec
from tests.adapters import LLAMA, merged, write_adapter
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import drivers, ragged, unit_of
from tests.engine.tape import TapeCapture
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("torch_only")

NAMES = ("", "low", "high", "low", "", "high")
EDITED = SamplingParams(temperature=0.0, logprobs=1)  # needs the host's sampler


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_recorded_steps_know_the_adapters_of_their_rows(
    tiny: ModelBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """One recording serves rows of other adapters in other places, and of fewer."""
    base = tiny(family)
    targets = LLAMA if family == "llama" else ("q_proj", "v_proj", "out_proj", "fc1", "fc2")
    oracles, adapters = {"": GreedyOracle(base)}, []
    for rank, name in ((2, "low"), (7, "high")):
        path = write_adapter(tmp_path / name, base, rank=rank, targets=targets, seed=rank)
        adapters.append(AdapterSpec(name, str(path)))
        oracles[name] = GreedyOracle(merged(tmp_path / f"{name}-merged", base, path))
    tape = TapeCapture(monkeypatch)
    (driver,) = drivers(unit_of(base, adapters=tuple(adapters)), tape)
    sequences = [
        driver.admit(prompt, adapter=name)
        for prompt, name in zip(ragged(driver.spec.vocab_size, 6), NAMES, strict=True)
    ]
    driver.step(sequences, chunk=1000)
    driver.step(sequences, chunk=1)  # operator by operator; the step is recorded then
    replays = tape.replays
    driver.step(sequences, chunk=1, max_steps=3)
    assert tape.replays == replays + 3
    captures = tape.captures
    driver.step([sequences[5], *sequences[1:4], sequences[0]], chunk=1)
    assert (tape.captures, tape.replays) == (captures, replays + 4)
    plain = [each for each, name in zip(sequences, NAMES, strict=True) if not name]
    for _ in range(2):
        driver.step(plain, chunk=1)
    assert tape.captures == captures + 1  # a job without adapters has a recording of its own
    edited = driver.admit([1, 2, 3], EDITED, adapter="high")
    driver.step([edited], chunk=10)
    driver.step([edited, sequences[1]], chunk=1)
    for each, name in zip([*sequences, edited], [*NAMES, "high"], strict=True):
        oracles[name].check(each.tokens[: each.num_prompt], each.output)
