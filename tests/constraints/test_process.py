"""The mask process: the same masks as in this process, whatever dies in between."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muxcluster.constraints import grammars
from muxcluster.constraints.matching import Matching, TokenMasks
from muxcluster.constraints.process import client as client_module
from muxcluster.constraints.process import frames
from muxcluster.constraints.process.blame import MOST_DEATHS, Blame
from muxcluster.constraints.process.client import MaskClient
from muxcluster.constraints.process.supervisor import MaskProcess
from muxcluster.constraints.rows import MaskModel, MaskRow, Masks
from muxcluster.constraints.vocabulary import Vocabulary, load_vocabulary
from muxcluster.core.errors import EngineFailure
from muxcluster.core.sampling import Constraint
from tests.constraints.sampling import Sampler

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 30}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CONSTRAINT = Constraint(grammars.json_schema(PERSON, "schema"))


def children_of(pid: int) -> list[int]:
    """The ids of a process's children."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]


def wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


@pytest.fixture(scope="module")
def plain(model_of: Callable[[str], MaskModel]) -> MaskModel:
    return model_of("bytes")


@pytest.fixture(scope="module")
def sampler(plain: MaskModel) -> Sampler:
    return Sampler(plain.name, load_vocabulary(plain))


@pytest.fixture(scope="module")
def process(plain: MaskModel) -> Iterator[MaskProcess]:
    made = MaskProcess([plain])
    yield made
    made.close()


@pytest.fixture
def client(process: MaskProcess) -> Iterator[MaskClient]:
    assert process.check("bytes", CONSTRAINT) is None
    made = MaskClient(process.address)
    yield made
    made.close()


def asked(client: MaskClient) -> Callable[[Sequence[MaskRow]], Masks]:
    return lambda rows: client.begin(rows).wait()


def expected(plain: MaskModel, sampler: Sampler, seed: int) -> list[int]:
    """What a sampler draws with masks made in this process."""
    vocabulary: Vocabulary = load_vocabulary(plain)
    matching = Matching({plain.name: TokenMasks(vocabulary)})
    return sampler.draw(matching.masks, CONSTRAINT, seed)[0]


def test_a_bad_grammar_is_named_and_a_good_one_is_not(process: MaskProcess) -> None:
    assert process.check("bytes", CONSTRAINT) is None
    assert "foo" in (process.check("bytes", Constraint(grammars.lark("start: foo", "p"))) or "")
    assert process.check("bytes", Constraint(grammars.regex("(?=a)b", "p"))) is not None
    assert process.check("other", CONSTRAINT) is not None


def test_masks_are_those_of_this_process(
    plain: MaskModel, sampler: Sampler, client: MaskClient
) -> None:
    for seed in range(3):
        tokens, is_complete = sampler.draw(asked(client), CONSTRAINT, seed, f"same {seed}")
        assert is_complete
        assert tokens == expected(plain, sampler, seed)


@pytest.mark.parametrize("victim", ["process", "server"])
@pytest.mark.parametrize("when", ["before", "while waiting"])
def test_a_kill_changes_no_token(
    plain: MaskModel,
    sampler: Sampler,
    process: MaskProcess,
    client: MaskClient,
    victim: str,
    when: str,
) -> None:
    num_calls, num_restarts = 0, process.num_restarts

    def ask(rows: Sequence[MaskRow]) -> Masks:
        nonlocal num_calls
        num_calls += 1
        pending = None if when == "before" else client.begin(rows)
        if num_calls % 20 == 10:
            assert process.pid is not None
            pid = process.pid if victim == "process" else children_of(process.pid)[0]
            os.kill(pid, signal.SIGKILL)
        return (pending or client.begin(rows)).wait()

    tokens, _ = sampler.draw(ask, CONSTRAINT, 7, f"killed {victim} {when}")
    assert tokens == expected(plain, sampler, 7)
    assert num_calls > 30
    assert process.num_restarts > num_restarts
    # A check that comes while nothing runs is answered too.
    assert process.check("bytes", CONSTRAINT) is None


def test_a_kill_during_checks_answers_all(process: MaskProcess) -> None:
    found: list[str | None] = []

    def check(number: int) -> None:
        grammar = grammars.choice([f"{number}"], "p")
        found.append(process.check("bytes", Constraint(grammar)))

    threads = [threading.Thread(target=check, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    pid = process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert found == [None] * 12


def test_rows_of_many_lengths_at_once(
    plain: MaskModel, sampler: Sampler, client: MaskClient, process: MaskProcess
) -> None:
    """Requests that overlap on one connection get their own answers."""
    tokens = expected(plain, sampler, 3)
    matching = Matching({plain.name: TokenMasks(load_vocabulary(plain))})
    rows = [
        MaskRow("bytes", f"many {at}", CONSTRAINT, np.array(tokens[:at], np.int32))
        for at in range(len(tokens))
    ]
    pending = [client.begin(rows[at : at + 5]) for at in range(0, len(rows), 5)]
    for at, each in reversed(list(enumerate(pending))):
        found, wanted = each.wait(), matching.masks(rows[5 * at : 5 * at + 5])
        assert np.array_equal(found.bits, wanted.bits)
        assert np.array_equal(found.must_end, wanted.must_end)
    assert process.check("bytes", CONSTRAINT) is None


def test_a_mask_that_comes_again_travels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the connection knows it, and whatever else has come meanwhile."""
    monkeypatch.setattr(frames, "MOST_MASKS", 6)
    chance = np.random.default_rng(0)
    some = [chance.integers(0, 2**32, 9, dtype=np.uint32) for _ in range(10)]
    sent, received = frames.SentMasks(), frames.ReceivedMasks()
    num_bytes = 0
    for number in range(100):
        wanted = [some[at].copy() for at in chance.integers(0, 10, 3)]
        for again in range(2):
            masks = Masks(wanted, np.array([True, False, True]), {1: "wrong"})
            message, data = sent.answer(number, masks)
            assert not (again and data and not message[2])
            found = received.masks(message, bytearray(data))
            assert np.array_equal(found.bits, wanted)
            assert (found.must_end.tolist(), found.errors) == ([True, False, True], {1: "wrong"})
            num_bytes += len(data)
    assert 10 * 36 < num_bytes < 100 * 3 * 36


def test_no_row_or_connection_is_left(process: MaskProcess) -> None:
    assert process.check("bytes", CONSTRAINT) is None
    pid = process.pid
    assert pid is not None
    (server,) = children_of(pid)
    folder, ours = Path(f"/proc/{server}/fd"), Path("/proc/self/fd")
    num_theirs, num_ours = len(list(folder.iterdir())), len(list(ours.iterdir()))
    for _ in range(30):
        made = MaskClient(process.address)
        row = MaskRow("bytes", "r", CONSTRAINT, np.empty(0, np.int32))
        assert not made.begin([row]).wait().errors
        made.close()
        process.check("bytes", Constraint(grammars.regex("[", "p")))
    wait_until(lambda: len(list(folder.iterdir())) <= num_theirs)
    wait_until(lambda: len(list(ours.iterdir())) <= num_ours)
    assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < 12


# Takes seconds to compile. A check would refuse it, but nobody checks it here.
LONG = Constraint(
    grammars.lark(
        "start: A\nA: " + " & ".join(f"/(.*x.{{{number}}}y.*)/" for number in range(5, 30)), "p"
    )
)


def test_the_row_with_which_the_server_dies_is_told_from_others(
    process: MaskProcess, client: MaskClient
) -> None:
    """The server is killed whenever it has worked on the row for a moment."""
    empty = np.empty(0, np.int32)
    rows = [MaskRow("bytes", "a", CONSTRAINT, empty), MaskRow("bytes", "long", LONG, empty),
            MaskRow("bytes", "b", CONSTRAINT, empty)]  # fmt: skip
    pending, found = client.begin(rows), list[Masks]()
    waiting = threading.Thread(target=lambda: found.append(pending.wait()))
    waiting.start()
    while waiting.is_alive():
        waiting.join(1.0)
        assert process.pid is not None
        for pid in children_of(process.pid) if waiting.is_alive() else ():
            os.kill(pid, signal.SIGKILL)
    assert list(found[0].errors) == [1]
    wanted = client.begin([MaskRow("bytes", "c", CONSTRAINT, empty)]).wait()
    assert np.array_equal(found[0].bits[0], wanted.bits[0])
    assert np.array_equal(found[0].bits[2], wanted.bits[0])
    assert not found[0].bits[1].any()


@pytest.mark.slow
def test_a_row_that_takes_too_long_ends_with_an_error(client: MaskClient) -> None:
    row = MaskRow("bytes", "hangs", LONG, np.empty(0, np.int32))
    assert client.begin([row]).wait().errors
    other = replace(row, request_id="other", constraint=CONSTRAINT)
    assert not client.begin([other]).wait().errors


def test_deaths_of_the_server_are_blamed_on_what_it_worked_on() -> None:
    rows = [MaskRow("m", f"{number}", CONSTRAINT, np.empty(0, np.int32)) for number in range(400)]
    blame = Blame()
    for death in range(MOST_DEATHS):
        assert blame.begin(rows[0])
        blame.end(rows[0])
        assert blame.begin(rows[1]), death
        blame.server_died()
    assert not blame.begin(rows[1])
    assert blame.begin(rows[0])
    # an answer in between clears a row, and no number of rows fills the memory
    for row in rows[2:]:
        for _ in range(MOST_DEATHS - 1):
            assert blame.begin(row)
            blame.server_died()
        assert blame.begin(row)
        blame.end(row)
        assert blame.begin(row)
        blame.server_died()
        assert blame.begin(row)


UNIT = """
    import sys, time
    from muxcluster.constraints import grammars
    from muxcluster.constraints.process.supervisor import MaskProcess
    from muxcluster.constraints.rows import MaskModel
    from muxcluster.core.sampling import Constraint
    made = MaskProcess([MaskModel("m", sys.argv[1], 437, (1,))])
    assert made.check("m", Constraint(grammars.json_object())) is None
    print(made.pid, made.address, flush=True)
    time.sleep(1000)
"""


def test_it_ends_with_a_killed_unit(plain: MaskModel) -> None:
    command = [sys.executable, "-c", textwrap.dedent(UNIT), plain.path]
    unit = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert unit.stdout is not None
    words = unit.stdout.readline().split()
    pid, address = int(words[0]), Path(words[1])
    pids = [pid, *children_of(pid)]
    assert len(pids) == 2
    unit.kill()
    unit.wait()
    wait_until(lambda: all(map(is_gone, pids)))
    wait_until(lambda: not address.parent.exists())


def test_close_ends_everything(plain: MaskModel) -> None:
    made = MaskProcess([plain])
    assert made.pid is None, "it starts with the first check"
    assert made.check("bytes", CONSTRAINT) is None
    assert made.pid is not None
    pids = [made.pid, *children_of(made.pid)]
    made.close()
    made.close()
    wait_until(lambda: all(map(is_gone, pids)))
    assert not Path(made.address).parent.exists()
    with pytest.raises(EngineFailure):
        made.check("bytes", CONSTRAINT)


def test_a_client_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PATIENCE_S", 0.2)
    made = MaskClient(str(tmp_path / "nobody"))
    pending = made.begin([MaskRow("bytes", "r", CONSTRAINT, np.empty(0, np.int32))])
    with pytest.raises(EngineFailure):
        pending.wait()


def test_a_model_without_tokenizer_cannot_be_constrained(tmp_path: Path, plain: MaskModel) -> None:
    made = MaskProcess([MaskModel("bare", str(tmp_path), 10, (1,)), plain])
    try:
        assert "tokenizer.json" in (made.check("bare", CONSTRAINT) or "")
        assert made.check("bytes", CONSTRAINT) is None
    finally:
        made.close()
