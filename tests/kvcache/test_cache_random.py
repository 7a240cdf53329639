"""Random legal operations on the KV cache against the oracle, checked after each one."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muxcluster.core.job import Side
from tests.amounts import examples
from tests.kvcache.oracle import MODELS, Pair

NUM_OPERATIONS = examples(2400, 6000)


class Walk:
    """Draws one legal operation at a time."""

    sides: tuple[Side, ...] = (Side.LEFT, Side.LEFT, Side.RIGHT)

    def __init__(self, seed: int, num_blocks: int) -> None:
        self.draw = random.Random(seed)
        self.pair = Pair(num_blocks)

    def step(self) -> str:
        operation = self.draw.choices(
            ("open", "grow", "commit", "close", "quota", "drop", "pin", "unpin"),
            (30, 40, 30, 22, 2, 1, 4, 3),
        )[0]
        getattr(self, operation)()
        self.pair.check()
        return operation

    def open(self) -> None:
        model = self.draw.choice(MODELS)
        closed = [s for s in range(model.max_seqs) if (model.name, s) not in self._open]
        if closed:
            length = model.max_model_len // self.pair.cache.of(model.name).block_tokens
            path = self.draw.choices((1, 2), (4, 1), k=length)
            salt = self.draw.choice(("", "", "tenant"))
            side = self.draw.choice(self.sides)
            self.pair.open(model.name, self.draw.choice(closed), path, salt, side)

    def grow(self) -> None:
        model = self.draw.choice(MODELS)
        rows = [row for name, row in self._open if name == model.name]
        chosen = self.draw.sample(rows, self.draw.randint(0, len(rows)))
        wanted = {row: self.draw.randint(1, model.max_model_len) for row in chosen}
        self.pair.grow(model.name, wanted)

    def commit(self) -> None:
        if self._open:
            key = self.draw.choice(list(self._open))
            sequence = self._open[key]
            most = min(len(sequence.columns), len(sequence.hashes)) - sequence.committed
            self.pair.commit(*key, self.draw.randint(0, max(0, most)))

    def close(self) -> None:
        if self._open:
            self.pair.close(*self.draw.choice(list(self._open)))

    def quota(self) -> None:
        self.pair.set_quota(self.draw.choice(MODELS).name, self.draw.randint(0, 60))

    def drop(self) -> None:
        self.pair.drop_cache()

    def pin(self) -> None:
        model = self.draw.choice(MODELS)
        length = model.max_model_len // self.pair.cache.of(model.name).block_tokens
        path = self.draw.choices((1, 2), (4, 1), k=self.draw.randint(1, length))
        pin_id = str(self.draw.randrange(5))
        self.pair.pin(pin_id, model.name, path, "")

    def unpin(self) -> None:
        self.pair.unpin(str(self.draw.randrange(5)))

    @property
    def _open(self):
        return self.pair.oracle.sequences


@pytest.mark.parametrize(("seed", "num_blocks"), [(0, 60), (1, 33), (2, 200)])
def test_random_operations_agree_with_the_oracle(seed: int, num_blocks: int) -> None:
    walk = Walk(seed, num_blocks)
    for _ in range(NUM_OPERATIONS // 3):
        walk.step()
    for key in list(walk.pair.oracle.sequences):
        walk.pair.close(*key)
    walk.pair.drop_cache()
    walk.pair.check()
    assert walk.pair.cache.free == num_blocks


MODEL = st.sampled_from(MODELS)


class CacheMachine(RuleBasedStateMachine):
    """The same operations, drawn and shrunk by hypothesis."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @rule(
        model=MODEL,
        row=st.integers(0, 5),
        path=st.lists(st.sampled_from((1, 2)), max_size=4),
        salt=st.sampled_from(("", "tenant")),
        side=st.sampled_from(Side),
    )
    def open(self, model, row, path, salt, side) -> None:
        row %= model.max_seqs
        if (model.name, row) not in self.pair.oracle.sequences:
            self.pair.open(model.name, row, path, salt, side)

    @rule(model=MODEL, tokens=st.dictionaries(st.integers(0, 5), st.integers(1, 64)))
    def grow(self, model, tokens) -> None:
        sequences = self.pair.oracle.sequences
        wanted = {row: n for row, n in tokens.items() if (model.name, row) in sequences}
        self.pair.grow(model.name, wanted)

    @precondition(lambda self: self.pair.oracle.sequences)
    @rule(data=st.data())
    def commit(self, data) -> None:
        key = data.draw(st.sampled_from(sorted(self.pair.oracle.sequences)))
        sequence = self.pair.oracle.sequences[key]
        most = min(len(sequence.columns), len(sequence.hashes)) - sequence.committed
        self.pair.commit(*key, data.draw(st.integers(0, max(0, most))))

    @precondition(lambda self: self.pair.oracle.sequences)
    @rule(data=st.data())
    def close(self, data) -> None:
        self.pair.close(*data.draw(st.sampled_from(sorted(self.pair.oracle.sequences))))

    @rule(model=MODEL, quota=st.integers(0, 60))
    def set_quota(self, model, quota) -> None:
        self.pair.set_quota(model.name, quota)

    @rule(
        model=MODEL,
        pin_id=st.sampled_from("abc"),
        path=st.lists(st.sampled_from((1, 2)), min_size=1, max_size=4),
    )
    def pin(self, model, pin_id, path) -> None:
        self.pair.pin(pin_id, model.name, path, "")

    @rule(pin_id=st.sampled_from("abc"))
    def unpin(self, pin_id) -> None:
        self.pair.unpin(pin_id)

    @rule()
    def drop_cache(self) -> None:
        self.pair.drop_cache()

    @invariant()
    def agrees(self) -> None:
        self.pair.check()


CacheMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, derandomize=True
)
TestCacheMachine = CacheMachine.TestCase
