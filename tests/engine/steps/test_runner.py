"""What a job returns besides greedy tokens: logprobs, prompt logprobs, seeds, 16-bit, threads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from muxcluster.core.job import Job, JobResult, Phase, Rows, TableDelta
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.steps.runner import UnitRunner
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import Driver, drivers, ragged, unit_of

ASKING = SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=3)


def hugging_face_logprobs(directory: Path, tokens: list[int]) -> torch.Tensor:
    """fp32 [tokens, vocab]."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_logprobs_of_prompt_and_output(tiny: ModelBuilder, chunk: int) -> None:
    directory = tiny("qwen2")
    unit = unit_of(directory)
    (driver,) = drivers(unit)
    prompts = [prompt[:20] for prompt in ragged(unit.models[0].vocab_size, 4, seed=6)]
    running = driver.run(prompts, 5, chunk=chunk, sampling=ASKING)
    for s in running:
        expected = hugging_face_logprobs(directory, s.tokens)
        entries = [*s.prompt_logprobs, *s.logprobs]
        assert [e.token for e in entries] == s.tokens[1:]
        assert len(s.logprobs) == 5
        for position, entry in enumerate(entries):
            row = expected[position]
            assert entry.logprob == pytest.approx(row[entry.token].item(), abs=2e-4)
            assert entry.top_tokens[0] == row.argmax().item()
            assert len(entry.top_tokens) == (3 if position < s.num_prompt - 1 else 2)


def test_only_rows_that_ask_get_logprobs(tiny: ModelBuilder) -> None:
    (driver,) = drivers(unit_of(tiny("llama")))
    rows = [driver.admit([3, 4, 5]), driver.admit([6, 7, 8], ASKING), driver.admit([9])]
    result = driver.step(rows, chunk=2)
    assert result.counts.tolist() == [0, 0, 1]
    assert set(result.prompt_logprobs) == {1}
    assert not result.logprobs
    result = driver.step(rows, chunk=2)
    assert result.counts.tolist() == [1, 1, 1]
    assert (set(result.logprobs), set(result.prompt_logprobs)) == ({1}, set())
    several = driver.step(rows, chunk=1, max_steps=3)
    assert {row: len(entries) for row, entries in several.logprobs.items()} == {1: 3}
    assert [e.token for e in several.logprobs[1]] == rows[1].output[-3:]


def sampled(driver: Driver, prompt: list[int], seed: int) -> list[int]:
    sampling = SamplingParams(temperature=1.0, seed=seed)
    return driver.run([prompt], 12, sampling=sampling)[0].output


def test_a_seed_decides_alone(tiny: ModelBuilder) -> None:
    """Not the batch, not the table row, not the chunks."""
    (driver,) = drivers(unit_of(tiny("llama")))
    prompt = list(range(30, 70))
    alone = sampled(driver, prompt, seed=5)
    assert sampled(driver, prompt, seed=6) != alone
    assert sampled(driver, prompt, seed=5) == alone
    others = ragged(driver.spec.vocab_size, 3)
    sampling = SamplingParams(temperature=1.0, seed=5)
    together = driver.run([*others, prompt], 12, chunk=5, sampling=sampling)
    assert together[-1].output == alone


@pytest.mark.parametrize("family", ["llama", "mistral", "opt", "mixtral"])
def test_bfloat16_stays_near_hugging_face(tiny: ModelBuilder, family: str) -> None:
    directory = tiny(family)
    unit = unit_of(directory, dtype="bfloat16")
    (driver,) = drivers(unit)
    prompt = ragged(unit.models[0].vocab_size, 2, seed=1)[1]
    asking = replace(ASKING, prompt_logprobs=0, logprobs=0)
    (s,) = driver.run([prompt], 6, chunk=20, sampling=asking)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = model(torch.tensor([s.tokens])).logits[0].float().log_softmax(-1)
    got = torch.tensor([e.logprob for e in (*s.prompt_logprobs, *s.logprobs)])
    wanted = expected[torch.arange(len(got)), torch.tensor(s.tokens[1:])]
    assert (got - wanted).abs().median() < 0.03 * wanted.std()


def test_arrays_of_a_job_may_be_read_only(tiny: ModelBuilder) -> None:
    """They are views of a received message in a worker; nothing may write to them."""
    (driver,) = drivers(unit_of(tiny("llama")))
    frozen: list[Job] = []

    class Freezing:
        def execute(self, job: Job) -> JobResult:
            admitted = [admission.tokens for admission in job.admissions]
            for array in (*_arrays(job.rows), *_arrays(job.tables), *admitted):
                array.setflags(write=False)
            frozen.append(job)
            return runner.execute(job)

        def record_next(self) -> bool:
            return runner.record_next()

    runner, driver.runner = driver.runner, Freezing()
    (s,) = driver.run([list(range(20))], 4)
    assert len(s.output) == 4
    assert len(frozen) >= 4


def _arrays(value: Rows | TableDelta) -> list[np.ndarray]:
    values = (getattr(value, name) for name in type(value).__slots__)
    return [each for each in values if isinstance(each, np.ndarray)]


def test_a_result_carries_its_job_and_seconds(tiny: ModelBuilder) -> None:
    (driver,) = drivers(unit_of(tiny("llama")))
    result = driver.step([driver.admit([5, 6])], chunk=10)
    assert result.job_id == 7
    assert result.seconds > 0
    assert (result.tokens.dtype, result.counts.dtype) == (np.int32, np.int32)


def test_a_share_is_a_number_of_threads(tiny: ModelBuilder) -> None:
    unit = replace(unit_of(tiny("mistral")), num_threads=2)
    runner = UnitRunner(unit)
    empty = np.empty(0, dtype=np.int32)
    rows = Rows(*(np.array([n], dtype=np.int32) for n in (0, 0, 1)), np.array([True]))
    tables = TableDelta(empty, empty, np.empty((0, 2), dtype=np.int32))
    for share, threads in ((0.5, 1), (1.0, 2), (0.1, 1)):
        job = Job(1, unit.models[0].name, Phase.DECODE, 0, share, rows, tables)
        runner.execute(job)
        assert torch.get_num_threads() == threads
