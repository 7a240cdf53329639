"""Models with their own cache in a unit: the same scheduler, blocks and workers as paged ones."""

from pathlib import Path

import pytest

from tests.engine.fakes import Sink
from tests.engine.units import check_lengths, check_nothing_leaks, greedy, prompts, running, submit
from tests.engine_dense.conftest import ModelBuilder
from tests.engine_dense.units import VOCAB, generated, unit_of

NUM_TOKENS = 12


def check_answers(sink: Sink, directory: Path, asked: dict[str, list[int]]) -> None:
    check_lengths(sink, asked, NUM_TOKENS)
    for request_id, prompt in asked.items():
        assert sink.tokens[request_id] == generated(directory, prompt, NUM_TOKENS), request_id


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
