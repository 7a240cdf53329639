"""Speculation through real models: the tokens are those without it, in fewer jobs."""

import os
import random
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from muxcluster.core.errors import LoadError
from muxcluster.core.job import DraftTokens, Rows, TokenLogprobs
from muxcluster.core.request import Request
from muxcluster.core.sampling import SamplingParams
from muxcluster.core.unitspec import SpeculationSpec, UnitSpec
from muxcluster.engine.sampling.results import RowsResult
from muxcluster.engine.steps import runner
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.steps.verification import draft_places, sampled_places, verified
from muxcluster.scheduling.packing import speculation
from tests.amounts import slow
from tests.engine.conftest import ModelBuilder
from tests.engine.live_units import RecordingExecutor, workers_of
from tests.engine.stepping import SteppedUnit
from tests.engine.tape import TapeCapture
from tests.engine.units import (
    check_lengths,
    check_nothing_leaks,
    greedy,
    request_of,
    running,
    spec_of,
    submit,
)
from tests.oracles import GreedyOracle

FORCED = SpeculationSpec(num_tokens=5, shortest_match=1, is_forced=True)
# Only these are likely, so that outputs drawn at random often go on as they did before.
FEW = tuple((token, 30.0) for token in (5, 6, 7))
NUM_TOKENS = 40
Outputs = Mapping[str, list[int]]


def speculating(spec: UnitSpec) -> UnitSpec:
    models = tuple(replace(model, speculation=FORCED) for model in spec.models)
    return replace(spec, models=models)


def repeating(model: str, count: int, *, seed: int = 0) -> dict[str, list[int]]:
    """Prompts in which a phrase comes several times, and something else between."""
    rng = random.Random(f"{model} {seed}")
    found = {}
    for number in range(count):
        phrase = [rng.randrange(512) for _ in range(6)]
        prompt: list[int] = []
        for _ in range(3):
            prompt += phrase + [rng.randrange(512) for _ in range(rng.randint(0, 3))]
        found[f"{model}/{seed}/{number}"] = prompt + phrase[:3]
    return found


def outcome(
    spec: UnitSpec, requests: Sequence[Request], engine: UnitRunner | None = None
) -> tuple[Mapping[str, list[int]], SteppedUnit]:
    unit = SteppedUnit(spec, engine)
    return unit.run(requests), unit


def num_accepted(unit: SteppedUnit) -> int:
    return sum(each.num_accepted_tokens for each in unit.scheduler.stats(0.0, "u").models)


def guess_by(
    monkeypatch: pytest.MonkeyPatch, prompts: Mapping[str, list[int]], outputs: Outputs
) -> None:
    """Let drafts be what follows, a third of them wrong: random models repeat little of a text."""
    texts = [prompts[name] + output for name, output in outputs.items()]
    rng = random.Random(5)

    def looked_up(tokens: NDArray[np.int32], most: int, **_: int) -> NDArray[np.int32]:
        known = tokens.tolist()
        (text,) = (each for each in texts if each[: len(known)] == known)
        found = text[len(known) :][: rng.randint(0, most)]
        wrong = [rng.randrange(512) if rng.random() < 0.3 else token for token in found]
        return np.array(wrong, dtype=np.int32)

    monkeypatch.setattr(speculation, "looked_up", looked_up)


@pytest.mark.parametrize(
    "family", ["llama", *slow("mistral", "opt", "qwen3", "qwen2", "mixtral", "gemma2", "gpt_oss")]
)
def test_greedy_tokens_are_those_of_hugging_face_in_fewer_jobs(
    tiny: ModelBuilder, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of([tiny(family)], lane="mixed", partition="none")
    asked = repeating(spec.models[0].name, 3)
    requests = [request_of(each, prompt, greedy(NUM_TOKENS)) for each, prompt in asked.items()]
    engine = UnitRunner(spec)
    plain, without = outcome(spec, requests, engine)
    oracle = GreedyOracle(tiny(family))
    for each, prompt in asked.items():
        oracle.check(prompt, plain[each])
    assert outcome(speculating(spec), requests, engine)[0] == plain
    guess_by(monkeypatch, asked, plain)
    found, unit = outcome(speculating(spec), requests, engine)
    assert found == plain
    assert num_accepted(unit) > NUM_TOKENS
    assert len(unit.jobs) < 0.8 * len(without.jobs)


SAMPLINGS = {
    "plain": SamplingParams(temperature=1.0, logit_bias=FEW),
    "truncated": SamplingParams(temperature=1.5, top_k=3, top_p=0.9, min_p=0.01, logit_bias=FEW),
    "penalties": SamplingParams(
        temperature=1.0,
        repetition_penalty=1.1,
        frequency_penalty=0.3,
        presence_penalty=0.2,
        logit_bias=FEW,
    ),
    "min tokens": SamplingParams(
        temperature=1.0, logit_bias=FEW, min_tokens=17, stop_token_ids=(6,)
    ),
    "stop": SamplingParams(temperature=0.7, logit_bias=(*FEW, (9, 28.0)), stop_token_ids=(9,)),
    "max tokens": SamplingParams(temperature=1.0, logit_bias=FEW),
}


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_seeded_tokens_are_the_same(tiny: ModelBuilder, kind: str) -> None:
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    name = spec.models[0].name
    requests = [
        request_of(
            each,
            prompt,
            replace(
                SAMPLINGS[kind],
                seed=number,
                max_tokens=7 + number if kind == "max tokens" else NUM_TOKENS,
                ignore_eos=True,
            ),
        )
        for number, (each, prompt) in enumerate(repeating(name, 5).items())
    ]
    engine = UnitRunner(spec)
    plain, without = outcome(spec, requests, engine)
    found, unit = outcome(speculating(spec), requests, engine)
    assert found == plain
    assert num_accepted(unit) > 0
    assert len(unit.jobs) < len(without.jobs) or kind == "stop"  # which ends early


class LoggedUnit(SteppedUnit):
    """Keeps the log-probabilities of output tokens, too."""

    def __init__(self, spec: UnitSpec) -> None:
        super().__init__(spec)
        self.logprobs: dict[str, list[TokenLogprobs]] = {}

    def step(self) -> bool:
        jobs = self.scheduler.next_jobs(self._now)
        for job in jobs:
            self._now += 0.001
            output = self.scheduler.complete(job, self.runner.execute(job), self._now)
            places = iter(output.tokens.tolist())
            for row, (name, count) in enumerate(
                zip(output.request_ids, output.counts.tolist(), strict=True)
            ):
                self.tokens[name] += [next(places) for _ in range(count)]
                self.logprobs.setdefault(name, []).extend(output.logprobs.get(row, ()))
        self.jobs += jobs
        return bool(jobs)


def test_every_token_has_its_log_probabilities(tiny: ModelBuilder) -> None:
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    sampling = SamplingParams(
        temperature=1.0, logit_bias=FEW, logprobs=3, max_tokens=NUM_TOKENS, ignore_eos=True
    )
    requests = [
        request_of(name, prompt, replace(sampling, seed=number))
        for number, (name, prompt) in enumerate(repeating(spec.models[0].name, 3).items())
    ]
    plain, unit = LoggedUnit(spec), LoggedUnit(speculating(spec))
    assert plain.run(requests) == unit.run(requests)
    assert num_accepted(unit) > 0
    for name, entries in unit.logprobs.items():
        assert [entry.token for entry in entries] == unit.tokens[name]
        for mine, theirs in zip(entries, plain.logprobs[name], strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert (mine.token, mine.rank) == (theirs.token, theirs.rank)
            assert mine.top_tokens == theirs.top_tokens


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch, torch_only: None) -> TapeCapture:
    """Steps as a GPU runs them, on its kernels' twins."""
    monkeypatch.setattr(runner, "is_fusible", lambda model: False)
    return TapeCapture(monkeypatch)


@pytest.mark.parametrize("kind", ["drawn", "edited"])
def test_steps_on_a_device_check_drafts_too(
    tiny: ModelBuilder, tape: TapeCapture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Tokens drawn there, and tokens that the host's sampler chooses."""
    sampling = {
        "drawn": SamplingParams(temperature=0.8, top_k=20),
        "edited": SAMPLINGS["penalties"],
    }[kind]
    sampling = replace(sampling, max_tokens=20, ignore_eos=True)
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    asked = repeating(spec.models[0].name, 3)
    requests = [
        request_of(name, prompt, replace(sampling, seed=number))
        for number, (name, prompt) in enumerate(asked.items())
    ]
    engine = UnitRunner(spec, capture=tape)
    plain, without = outcome(spec, requests, engine)
    guess_by(monkeypatch, asked, plain)
    found, unit = outcome(speculating(spec), requests, engine)
    assert found == plain
    assert num_accepted(unit) > 20
    assert len(unit.jobs) < 0.8 * len(without.jobs)


@pytest.mark.parametrize("lane", ["mixed", *slow("adbs", "temporal")])
@pytest.mark.usefixtures("fast_children")
def test_workers_killed_and_rows_preempted_change_no_token(tiny: ModelBuilder, lane: str) -> None:
    """Real processes, jobs sent ahead where no drafts are expected, a pool that is too small."""
    plain = spec_of([tiny("llama"), tiny("opt")], lane=lane, num_columns=14)
    plain = replace(plain, scheduler=replace(plain.scheduler, pipeline_depth=2))
    asked: dict[str, list[int]] = {}
    for model in plain.models:
        asked |= repeating(model.name, 5)
    sampling = SamplingParams(
        temperature=1.0, logit_bias=FEW, max_tokens=NUM_TOKENS, ignore_eos=True
    )
    expected = _expected(plain, asked, sampling)
    spec = speculating(plain)
    executor = RecordingExecutor(spec)
    with running(spec, executor) as (unit, sink):
        submit(unit, asked, sampling, seeded=True)
        first, *_, last = asked
        for name, count in ((first, 3), (last, 12)):
            sink.wait_for_tokens(name, count)
            os.kill(workers_of(executor.owner_pid, len(spec.workers))[0], signal.SIGKILL)
        sink.wait_for_ends(len(asked))
        check_lengths(sink, asked, NUM_TOKENS)
        check_nothing_leaks(unit)
        stats = unit.stats().models
    assert {name: sink.tokens[name] for name in asked} == expected
    assert sum(each.num_accepted_tokens for each in stats) > 0
    assert sum(each.num_preemptions for each in stats) > 0
    ends = [sink.ends[name].finished for name in asked]
    assert sum(end.num_accepted for end in ends if end is not None) > 0


def _expected(
    spec: UnitSpec, asked: Mapping[str, list[int]], sampling: SamplingParams
) -> Mapping[str, list[int]]:
    """Without speculation, in one thread."""
    requests = [
        request_of(name, prompt, replace(sampling, seed=number))
        for number, (name, prompt) in enumerate(asked.items())
    ]
    alone = spec_of([Path(model.path) for model in spec.models], lane="mixed", partition="none")
    return outcome(alone, requests)[0]


@pytest.fixture
def shared_prefix() -> Iterator[list[int]]:
    rng = random.Random(7)
    yield [rng.randrange(512) for _ in range(24)]


def test_rejected_drafts_never_enter_the_prefix_cache(
    tiny: ModelBuilder, shared_prefix: list[int]
) -> None:
    """Requests that go on from the output of others find its blocks, which hold its tokens."""
    plain = spec_of([tiny("llama")], lane="mixed", partition="none")
    spec = speculating(plain)
    name = spec.models[0].name
    first = request_of(f"{name}/first", shared_prefix * 2, greedy(NUM_TOKENS))
    unit, without = SteppedUnit(spec), SteppedUnit(plain)
    output = unit.run([first])[first.request_id]
    without.run([first])
    follow = [
        request_of(f"{name}/{number}", shared_prefix * 2 + output[:-number], greedy(20))
        for number in range(1, 9)
    ]
    assert unit.run(follow) == without.run(follow)
    assert unit.scheduler.stats(0.0, "u").models[0].prefix_hits > 0


def test_a_model_with_a_cache_of_its_own_is_refused(tiny: ModelBuilder) -> None:
    spec = spec_of([tiny("llama")], lane="mixed", partition="none")
    dense = replace(spec, models=tuple(replace(each, backend="dense") for each in spec.models))
    with pytest.raises(LoadError, match="speculation needs the paged backend"):
        UnitRunner(speculating(dense))


def test_tokens_of_a_row_are_kept_up_to_the_first_wrong_draft() -> None:
    """`verified`, by hand: a row without drafts, one whose second is wrong, a chunk, and one whose
    drafts are all right."""
    drafts = DraftTokens(np.array([0, 3, 0, 1], np.int32), np.array([11, 12, 13, 21], np.int32))
    rows = Rows(
        np.array([4, 3, 2, 1], np.int32),
        np.array([9, 5, 0, 7], np.int32),
        np.array([1, 4, 6, 2], np.int32),
        np.array([True, True, False, True]),
        drafts=drafts,
    )
    places = sampled_places(rows)
    assert places.rows.tolist() == [0, 1, 1, 1, 1, 3, 3]
    assert places.back.tolist() == [0, 3, 2, 1, 0, 1, 0]
    where = draft_places(rows)
    assert [each.tolist() for each in where] == [[3, 3, 3, 1], [6, 7, 8, 8], [11, 12, 13, 21]]
    sampled = np.array([[1, 11, 99, 13, 14, 21, 22]], np.int32)
    broken = np.array([False, False, True, True, False, False, False])
    entries = {place: (TokenLogprobs(int(sampled[0, place]), -0.5, 1),) for place in range(1, 5)}
    found = verified(RowsResult(sampled, entries, {}, broken, refused={0: "why"}), places, rows)
    assert found.tokens.tolist() == [[1, 11, 21]]
    assert found.runs == {1: (99,), 3: (22,)}
    assert {row: [e.token for e in each] for row, each in found.logprobs.items()} == {1: [11, 99]}
    assert found.is_broken.tolist() == [False, True, False]
    assert found.refused == {0: "why"}
