"""Models with their own cache in a unit: the same scheduler, blocks and workers as paged ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from muxcluster.core.backends import as_loaded
from muxcluster.core.errors import LoadError
from muxcluster.core.job import TokenLogprobs
from muxcluster.core.sampling import SamplingParams
from muxcluster.engine.dense.batch import DenseBatch
from muxcluster.engine.dense.cachetree import rebuilt
from muxcluster.engine.dense.forward import DenseForward
from muxcluster.engine.dense.store import RowStore
from muxcluster.engine.executor import JobDone
from muxcluster.engine.unit.in_process import InProcessExecutor
from muxcluster.scheduling.scheduler import UnitScheduler
from tests.amounts import slow
from tests.engine.conftest import ModelBuilder
from tests.engine.dense.units import VOCAB, generated, unit_of
from tests.engine.fakes import Sink
from tests.engine.units import (
    check_lengths,
    check_nothing_leaks,
    greedy,
    prompts,
    request_of,
    running,
    submit,
)

pytestmark = pytest.mark.usefixtures("fast_children")

NUM_TOKENS = 12
MANY_TOKENS = 50
"""So many that sequences grow by several columns."""
SO_MANY_TOKENS = 120
"""So many that not all whose prompts there was memory for find it later."""


def check_answers(
    sink: Sink, directory: Path, asked: dict[str, list[int]], num_tokens: int = NUM_TOKENS
) -> None:
    check_lengths(sink, asked, num_tokens)
    for request_id, prompt in asked.items():
        assert sink.tokens[request_id] == generated(directory, prompt, num_tokens), request_id


@pytest.mark.parametrize("family", ["bloom", "mpt", "mamba", "jamba"])
def test_answers_are_those_of_the_library(tiny: ModelBuilder, family: str) -> None:
    directory = tiny(family)
    spec = unit_of({family: directory}, (tiny("llama"),))
    own = prompts(family, 8, VOCAB, shared=20, longest=90)
    others = prompts("llama", 4, VOCAB)
    with running(spec) as (unit, sink):
        submit(unit, own, greedy(NUM_TOKENS))
        submit(unit, others, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(own) + len(others))
        check_answers(sink, directory, own)
        check_lengths(sink, others, NUM_TOKENS)
        stats = {model.name: model for model in unit.stats().models}
        assert (stats[family].backend, stats["llama"].backend) == ("dense", "paged")
        check_nothing_leaks(unit)


class Weighed:
    """The most bytes that batches have held, how many steps there were, and rows read for them.

    sizes: after each step, the rows and the bytes of its batch.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.num_steps = self.num_reads = 0
        self.sizes: list[tuple[int, int]] = []
        step, embed, read = DenseBatch.step, DenseBatch.embed, RowStore.read

        def weighed_step(batch, tokens):
            logits = step(batch, tokens)
            self.num_steps += 1
            self.most = max(self.most, batch.num_bytes)
            self.sizes.append((len(batch.queries), batch.num_bytes))
            return logits

        def weighed_embed(batch, rows):
            embed(batch, rows)
            self.most = max(self.most, batch.num_bytes)

        def noted_read(store, row, length):
            self.num_reads += 1
            return read(store, row, length)

        monkeypatch.setattr(RowStore, "read", noted_read)
        monkeypatch.setattr(DenseBatch, "step", weighed_step)
        monkeypatch.setattr(DenseBatch, "embed", weighed_embed)


@pytest.mark.slow
def test_batches_keep_to_the_slab_and_preempted_rows_come_again(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose padded batch would be several times the slab, in a pool that holds a part of them:
    jobs have as many as fit, in one batch each, and answers stay the same."""
    directory = tiny("bloom")
    spec = unit_of({"bloom": directory}, (), num_blocks=520)
    weighed = Weighed(monkeypatch)
    executor = InProcessExecutor(spec)
    asked = prompts("bloom", 12, VOCAB, longest=30)
    with running(spec, executor) as (unit, sink):
        (backend,) = executor.backends
        slab_bytes = backend.slab_blocks * spec.block_bytes
        submit(unit, asked, greedy(SO_MANY_TOKENS))
        sink.wait_for_ends(len(asked))
        (stats,) = unit.stats().models
        assert stats.num_preemptions > 0, "the pool was too large to say anything"
        assert unit.stats().num_blocks == spec.num_blocks - backend.slab_blocks
        check_answers(sink, directory, asked, SO_MANY_TOKENS)
        check_nothing_leaks(unit)
    assert weighed.num_steps > 0
    assert weighed.most * 2 <= slab_bytes, "with the rows before them, batches pass the slab"
    assert 4 * weighed.num_reads < weighed.num_steps, "rows come and go with every step"


@pytest.mark.slow
def test_a_cache_that_takes_more_than_foretold_gets_fewer_rows(
    tiny: ModelBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's cache, in three times the memory that it needs: jobs are as large as what
    batches were found to take lets them be, and answers stay the same."""
    directory = tiny("bloom")
    spec = unit_of({"bloom": directory}, (), num_blocks=2400)
    weighed = Weighed(monkeypatch)
    run = DenseForward.run

    def generous(leaf):
        return leaf.new_zeros((3, *leaf.shape))[0].copy_(leaf) if isinstance(leaf, Tensor) else leaf

    def generous_run(*args, **kwargs):
        output = run(*args, **kwargs)
        return replace(output, cache=rebuilt(output.cache, generous))

    monkeypatch.setattr(DenseForward, "run", generous_run)
    executor = InProcessExecutor(spec)
    asked = prompts("bloom", 14, VOCAB, longest=120)
    with running(spec, executor) as (unit, sink):
        (backend,) = executor.backends
        assert backend.padded is not None
        limit_bytes = backend.padded.limit_bytes
        submit(unit, asked, greedy(MANY_TOKENS))
        sink.wait_for_ends(len(asked))
        check_answers(sink, directory, asked, MANY_TOKENS)
        check_nothing_leaks(unit)
        (stats,) = unit.stats().models
        assert stats.padded_usage == pytest.approx(weighed.sizes[-1][1] / limit_bytes)
    most_rows = max(rows for rows, _ in weighed.sizes)
    assert 2 < most_rows < 8, "the limit was too high or too low to say anything"
    # One step more than the measured one, which came before the rows were as long.
    assert max(size for _, size in weighed.sizes) <= 1.05 * limit_bytes


@pytest.mark.parametrize("family", ["bloom", *slow("mamba")])
def test_prefills_and_decodes_in_workers_of_their_own(tiny: ModelBuilder, family: str) -> None:
    """What one process prefilled another one decodes: they meet in the pool alone."""
    directory = tiny(family)
    spec = unit_of({family: directory}, (tiny("llama"),), partition="threads", lane="adbs")
    asked = prompts(family, 6, VOCAB, longest=90)
    with running(spec) as (unit, sink):
        submit(unit, asked, greedy(NUM_TOKENS))
        sink.wait_for_ends(len(asked))
        check_answers(sink, directory, asked)
        check_nothing_leaks(unit)


@pytest.mark.parametrize("family", ["bloom", "jamba"])
def test_logprobs_of_a_prompt_in_chunks(tiny: ModelBuilder, family: str) -> None:
    """A prompt of several jobs says of each of its tokens what a prompt of one job says."""
    found: list[list[TokenLogprobs]] = []
    for budget in (64, 512):
        spec = unit_of({family: tiny(family)}, ())
        spec = replace(spec, scheduler=replace(spec.scheduler, token_budget=budget))
        (prompt,) = prompts(family, 1, VOCAB, shared=150, longest=3).values()
        sampling = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1)
        executor = InProcessExecutor(spec)
        executor.start()
        scheduler = UnitScheduler(as_loaded(spec, executor.backends))
        scheduler.add(request_of(f"{family}/0", prompt, sampling), 0.0)
        said: list[TokenLogprobs] = []
        while jobs := scheduler.next_jobs(0.0):
            for job in jobs:
                executor.launch(job)
                (done,) = executor.wait(0.0)
                assert isinstance(done, JobDone), done
                output = scheduler.complete(job, done.result, 0.0)
                said += [each for part in output.prompt_logprobs.values() for each in part]
        found.append(said)
    assert len(found[0]) == len(found[1]) == len(prompt) - 1
    assert [each.token for each in found[0]] == [each.token for each in found[1]] == prompt[1:]
    logprobs = [[each.logprob for each in said] for said in found]
    np.testing.assert_allclose(logprobs[0], logprobs[1], atol=1e-3)


def test_a_cache_that_the_blocks_cannot_hold_is_refused(tiny: ModelBuilder) -> None:
    spec = unit_of({"bloom": tiny("bloom")}, ())
    (model,) = spec.models
    small = replace(model, shape=replace(model.shape, num_layers=1))
    with pytest.raises(LoadError, match="2048 bytes a token.*8 blocks a column"):
        InProcessExecutor(replace(spec, models=(small,))).start()
    with pytest.raises(LoadError, match=r"raise policy\.kv_gb or lower max_model_len"):
        InProcessExecutor(replace(spec, num_blocks=300)).start()
