"""Models that wake and are parked in real processes: their tokens, their losses, their memory."""

import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from muxcluster.core.residency import MoveKind
from muxcluster.engine.executor import JobFailed, ModelLost, MoveFailed, OwnerLost
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.losses import MAX_BLANK
from tests.engine.conftest import ModelBuilder
from tests.engine.driver import ragged
from tests.engine.live_units import children, wait_until_gone
from tests.engine.residency.moved import Moves, moving
from tests.oracles import GreedyOracle

pytestmark = pytest.mark.usefixtures("fast_children")

# one shows its backend without weights, one only when it runs, one is dense
FAMILIES = ("llama", "mixtral", "bloom")
NUM_TOKENS = 6
IMPATIENT = Patience(silence_s=0.8, fork_s=5.0)


@pytest.fixture(scope="module")
def three(tiny: ModelBuilder) -> dict[str, Path]:
    return {family: tiny(family) for family in FAMILIES}


@pytest.fixture(scope="module")
def oracles(three: Mapping[str, Path]) -> dict[str, GreedyOracle]:
    return {family: GreedyOracle(path) for family, path in three.items()}


@pytest.fixture(scope="module")
def fragile(three: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose files a test breaks for a while."""
    return Path(shutil.copytree(three["llama"], tmp_path_factory.mktemp("broken") / "fragile"))


@pytest.fixture(scope="module")
def large(tiny: ModelBuilder) -> Path:
    """A model whose weights are much more than what processes take beside them."""
    return tiny("llama", hidden_size=768, intermediate_size=3072)


@pytest.fixture(scope="module")
def started(three: Mapping[str, Path], fragile: Path, large: Path) -> Iterator[Moves]:
    """All of them; none is resident at first. Every test parks what it wakes."""
    with moving([*three.values(), fragile, large], 2, patience=IMPATIENT) as moves:
        yield moves


@pytest.fixture
def moves(started: Moves) -> Iterator[Moves]:
    assert started.executor.model_pids == {}
    yield started
    for name in list(started.executor.model_pids):
        started.park(name)
    assert started.others == []


def check_answers(
    moves: Moves, oracle: GreedyOracle, name: str, *, seed: int = 0, num_prompts: int = 4
) -> None:
    """The resident model answers as Hugging Face's generate does."""
    prompts = ragged(512, num_prompts, seed=seed)
    answers = moves.driver(name).run(prompts, NUM_TOKENS)
    for prompt, answer in zip(prompts, answers, strict=True):
        oracle.check(prompt, answer.output)


def worker_of(moves: Moves, name: str) -> int:
    return children(moves.executor.model_pids[name])["mux-worker-0"]


@pytest.mark.slow
def test_families_that_take_turns_answer_as_alone(
    moves: Moves, oracles: Mapping[str, GreedyOracle]
) -> None:
    backends = {each.model: each.name for each in moves.executor.backends}
    assert [backends[name] for name in FAMILIES] == ["paged", "paged", "dense"]
    for seed in range(2):
        for name in FAMILIES:
            moved = moves.wake(name)
            assert moved.backend in moves.executor.backends
            check_answers(moves, oracles[name], name, seed=seed)
            assert moves.park(name).backend is None


def test_a_model_runs_jobs_while_another_wakes_and_is_parked(
    moves: Moves, oracles: Mapping[str, GreedyOracle]
) -> None:
    moves.wake("llama")
    driver, prompts = moves.driver("llama"), ragged(512, 3)
    sequences = [driver.admit(prompt) for prompt in prompts]
    for kind in (MoveKind.WAKE, MoveKind.PARK):
        move_id = moves.begin("mixtral", kind)
        for _ in range(4):
            driver.step(sequences, 100)
        outcome = next((o for o in moves.others if getattr(o, "move_id", None) == move_id), None)
        if outcome is None:
            moves.end(move_id)
        moves.others.clear()
    for prompt, sequence in zip(prompts, sequences, strict=True):
        oracles["llama"].check(prompt, sequence.output)


def test_a_wake_that_dies_fails_and_the_next_one_works(
    moves: Moves, oracles: Mapping[str, GreedyOracle]
) -> None:
    moves.wake("mixtral")
    move_id = moves.begin("llama", MoveKind.WAKE)
    victim = moves.executor.model_pids["llama"]
    os.kill(victim, signal.SIGKILL)
    failed = moves.end(move_id)
    assert failed == MoveFailed(move_id, "the owner of llama died while it loaded", False)
    wait_until_gone([victim])
    check_answers(moves, oracles["mixtral"], "mixtral")
    moves.wake("llama")
    check_answers(moves, oracles["llama"], "llama")


def test_a_model_owner_killed_in_a_job_takes_its_workers_and_nobody_else(
    moves: Moves, oracles: Mapping[str, GreedyOracle]
) -> None:
    moves.wake("mixtral")
    moves.wake("llama")
    driver = moves.driver("llama")
    sequences = [driver.admit(prompt) for prompt in ragged(512, 3)]
    driver.step(sequences, 100)
    owner, worker = moves.executor.model_pids["llama"], worker_of(moves, "llama")
    os.kill(worker, signal.SIGSTOP)
    moves.executor.launch(driver.decode_job(sequences, 0, 1))
    os.kill(owner, signal.SIGKILL)
    cause = "the owner of llama died"
    assert moves.until_lost() == [
        JobFailed(8, 0, cause, has_started=False),
        ModelLost("llama", cause),
    ]
    wait_until_gone([owner, worker])
    check_answers(moves, oracles["mixtral"], "mixtral")
    moves.wake("llama")
    check_answers(moves, oracles["llama"], "llama")


def test_a_worker_killed_idle_is_replaced(
    moves: Moves, oracles: Mapping[str, GreedyOracle]
) -> None:
    moves.wake("llama")
    victim = worker_of(moves, "llama")
    os.kill(victim, signal.SIGKILL)
    wait_until_gone_though_waiting(moves, victim)
    check_answers(moves, oracles["llama"], "llama")


def wait_until_gone_though_waiting(moves: Moves, victim: int) -> None:
    """Let the executor notice a death, by which its owner reaps the victim."""
    while Path(f"/proc/{victim}").exists():
        moves.others += [each for each in moves.executor.wait(0.05) if hasattr(each, "model")]


def test_a_stopped_model_owner_is_lost(moves: Moves) -> None:
    moves.wake("llama")
    owner, worker = moves.executor.model_pids["llama"], worker_of(moves, "llama")
    os.kill(owner, signal.SIGSTOP)
    assert moves.until_lost() == [ModelLost("llama", "the owner of llama hung")]
    wait_until_gone([owner, worker])


def test_a_model_whose_wakes_all_die_is_given_up_and_may_be_tried_again(
    moves: Moves, oracles: Mapping[str, GreedyOracle]
) -> None:
    moves.wake("llama")
    check_answers(moves, oracles["llama"], "llama")  # jobs that end excuse earlier losses
    moves.park("llama")
    finals = []
    for _ in range(MAX_BLANK + 1):
        move_id = moves.begin("llama", MoveKind.WAKE)
        os.kill(moves.executor.model_pids["llama"], signal.SIGKILL)
        failed = moves.end(move_id)
        assert isinstance(failed, MoveFailed)
        finals.append(failed.is_final)
    assert finals == [False] * MAX_BLANK + [True]
    moves.wake("llama")


def test_a_lost_pool_owner_takes_all_and_begins_again(
    moves: Moves, oracles: Mapping[str, GreedyOracle]
) -> None:
    moves.wake("llama")
    moves.begin("mixtral", MoveKind.WAKE)
    lost = [moves.executor.owner_pid, *moves.executor.model_pids.values()]
    os.kill(moves.executor.owner_pid, signal.SIGKILL)
    assert moves.until_lost() == [OwnerLost("the pool owner of u died")]
    wait_until_gone(lost)
    moves.executor.restart()
    assert moves.executor.model_pids == {}
    moves.wake("mixtral")
    check_answers(moves, oracles["mixtral"], "mixtral")


def test_a_file_that_breaks_fails_the_wake_for_good(
    moves: Moves, oracles: Mapping[str, GreedyOracle], three: Mapping[str, Path], fragile: Path
) -> None:
    weights = fragile / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    failed = moves.end(moves.begin("fragile", MoveKind.WAKE))
    shutil.copy(three["llama"] / weights.name, weights)
    assert isinstance(failed, MoveFailed)
    assert failed.is_final
    assert str(weights) in failed.message
    moves.wake("fragile")
    check_answers(moves, oracles["llama"], "fragile")


def resident_bytes(pids: list[int]) -> int:
    """Memory of some processes, what they share counted once."""
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    lines = [line for rollup in rollups for line in rollup.splitlines()]
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def test_parking_gives_the_memory_back(moves: Moves, large: Path) -> None:
    weights = (large / "model.safetensors").stat().st_size
    pool = moves.executor.owner_pid
    parked = resident_bytes([pool])
    for _ in range(2):
        moves.wake(large.name)
        owner = moves.executor.model_pids[large.name]
        assert resident_bytes([pool, owner, *children(owner).values()]) > parked + weights
        moves.park(large.name)
        assert moves.executor.owner_pid == pool
        assert children(pool) == {}
        assert not Path(f"/proc/{owner}").exists()
        assert resident_bytes([pool]) < parked + weights // 8
