"""Memory owner of one rank of a CPU unit: loads its part of every model, forks its workers.

Run as `python -m muxcluster.engine.parallel.rank_owner CONTROL_FD FORK_FD RANK FOLDER` by the unit,
with the protocol of muxcluster.engine.workers.owner. The workers of one id on all ranks are a
group. Groups are formed after the fork: gloo runs threads, and a process with threads must not
fork. The ranks meet while they load, too, to check their logits; that group is left before any
fork.
"""

import select
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from muxcluster.channel.codec import Done, Failed
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.backends import ModelBackend
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.executor import JobDone, JobFailed
from muxcluster.engine.parallel.answers import answer_of
from muxcluster.engine.parallel.process_group import ProcessGroup
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.workers.child_main import serve_unit
from muxcluster.engine.workers.owner import Owner, prepare_to_fork
from muxcluster.engine.workers.worker import Worker

_POLL_S = 0.005


class OwnerGone(Exception):
    """The owner ended while one of its workers waited for the other ranks."""


class RankWorkers:
    """Makes the workers of one rank, each joined to those of the same id on other ranks."""

    def __init__(self, runner: UnitRunner, group: ProcessGroup, folder: Path) -> None:
        """group: of the runner's models, not joined. folder: where the ranks meet."""
        self._runner = runner
        self._group = group
        self._folder = folder
        self._num_made: Counter[int] = Counter()

    @property
    def backends(self) -> tuple[ModelBackend, ...]:
        """How the models run."""
        return self._runner.backends

    def count(self, worker_id: int) -> None:
        """Note, in the owner, that the worker is forked (again)."""
        self._num_made[worker_id] += 1

    def make(self, worker_id: int, frames: FrameSocket, owner_alive: int) -> Worker:
        """Join the group and return the worker, in its own process.

        Raises OwnerGone, if the owner ends while the worker waits for the other ranks.
        """
        # The unit makes workers of one id on all ranks or on none, so all count alike.
        meeting_point = self._folder / f"worker-{worker_id}-{self._num_made[worker_id]}"
        self._await_others(meeting_point, owner_alive)
        self._group.join(meeting_point)

        def answer(outcome: JobDone | JobFailed) -> Done | Failed:
            return answer_of(outcome, self._group.rank, self._group.num_calls)

        return Worker(self._runner, frames, owner_alive, answer)

    def _await_others(self, meeting_point: Path, owner_alive: int) -> None:
        """Block until all ranks are here: a join watches no pipe, and has no time limit."""
        names = [f"{meeting_point}-rank-{rank}" for rank in range(self._group.size)]
        Path(names[self._group.rank]).touch()
        while not all(Path(name).exists() for name in names):
            if select.select([owner_alive], [], [], _POLL_S)[0]:
                raise OwnerGone


class RankOwner(Owner):
    """An owner whose workers join those of other ranks."""

    def __init__(
        self, spec: UnitSpec, workers: RankWorkers, control: FrameSocket, forks: socket.socket
    ) -> None:
        super().__init__(spec.unit_id, workers.make, control, forks)
        self._workers = workers

    def _fork(self, child_id: int, descriptors: Sequence[int]) -> int:
        self._workers.count(child_id)
        return super()._fork(child_id, descriptors)


def main(control_fd: int, fork_fd: int, rank: int, folder: Path) -> int:
    """Serve one unit to its end; return the exit status."""
    forks = socket.socket(fileno=fork_fd)

    def load(spec: UnitSpec) -> RankWorkers:
        torch.set_num_threads(1)
        group = ProcessGroup(rank, spec.tp, "cpu")
        group.join(folder / "load")
        runner = UnitRunner(spec.of_rank(rank), group=group)
        group.leave()
        prepare_to_fork()
        return RankWorkers(runner, group, folder)

    def serve(spec: UnitSpec, workers: RankWorkers, control: FrameSocket) -> None:
        RankOwner(spec, workers, control, forks).serve()

    def explain(said: str) -> str:
        return f"rank {rank}: {said}"

    return serve_unit(
        f"mux-rank-{rank}", control_fd, load, serve, explain, lambda workers: workers.backends
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
