"""Steps of a GPU with adapters, with a tape in the place of CUDA graphs."""

from pathlib import Path

import pytest
from torch import Tensor

from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import AdapterSpec
from muxcluster.engine.adapters import linear
from muxcluster.engine.steps.device.captures import Step
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


class Refusing(TapeCapture):
    """A tape whose captures fail while `fails` is set."""

    fails = False

    def capture(self, step: Step) -> Step:
        if self.fails:
            step()
            raise RuntimeError("operation not permitted when stream is capturing")
        return super().capture(step)


def one_adapter(base: Path, folder: Path) -> tuple[AdapterSpec, ...]:
    path = write_adapter(folder / "low", base, rank=2, targets=LLAMA, seed=2)
    return (AdapterSpec("low", str(path)),)


def test_failed_captures_of_adapted_steps_stop_no_others(
    tiny: ModelBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    base, tape = tiny("llama"), Refusing(monkeypatch)
    (driver,) = drivers(unit_of(base, adapters=one_adapter(base, tmp_path)), tape)
    prompts = ragged(driver.spec.vocab_size, 8)
    adapted = [driver.admit(prompt, adapter="low") for prompt in prompts[:4]]
    plain = [driver.admit(prompt) for prompt in prompts[4:]]
    driver.step([*adapted, *plain], chunk=1000)
    tape.fails = True
    for num_rows in (1, 2, 4):
        driver.step(adapted[:num_rows], chunk=1)
    tape.fails = False
    assert caplog.records[-1].message.startswith("llama with adapters: no more CUDA graphs")
    driver.step(adapted, chunk=1)
    assert tape.captures == 0
    for _ in range(2):
        driver.step(plain, chunk=1)
    assert tape.captures == 1
    merged_path = merged(tmp_path / "merged", base, tmp_path / "low")
    for oracle, sequences in ((GreedyOracle(merged_path), adapted), (GreedyOracle(base), plain)):
        for each in sequences:
            oracle.check(each.tokens[: each.num_prompt], each.output)


def test_the_warm_up_computes_with_adapters_too(
    tiny: ModelBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, tape = tiny("llama"), TapeCapture(monkeypatch)
    sizes: list[int] = []
    update = linear.low_rank_update  # the tape's

    def counted(outputs: Tensor, *others: object) -> None:
        sizes.append(len(outputs))
        update(outputs, *others)

    monkeypatch.setattr(linear, "low_rank_update", counted)
    (driver,) = drivers(unit_of(base, adapters=one_adapter(base, tmp_path)), tape)
    sizes.clear()
    driver.runner.warm_up(0)
    assert len(set(sizes)) > 2
