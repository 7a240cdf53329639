"""Process of one rank: its part of every model, its own pool, one job after the other.

Run as `python -m muxcluster.engine.parallel.rank CONTROL_FD RANK MEETING_POINT` by the unit.
"""

import logging
import sys
from dataclasses import replace
from pathlib import Path

import torch

from muxcluster.channel.codec import Done, Failed, Launch, decode, encode
from muxcluster.channel.frames import FrameSocket
from muxcluster.core.job import Job
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.parallel.process_group import ProcessGroup, backend_for
from muxcluster.engine.steps.device.captures import CallAgain
from muxcluster.engine.steps.runner import UnitRunner
from muxcluster.engine.workers.child_main import serve_unit

logger = logging.getLogger(__name__)


class Rank:
    """Runs the jobs of one rank in the order of arrival, which is the same on all ranks."""

    # So every collective meets its counterpart on the other ranks.

    def __init__(self, runner: UnitRunner, group: ProcessGroup, control: FrameSocket) -> None:
        self._runner = runner
        self._group = group
        self._control = control

    def serve(self) -> None:
        while (frame := self._control.recv()) is not None:
            message = decode(frame)
            assert isinstance(message, Launch), f"a rank was sent {type(message).__name__}"
            self._control.send(encode(self._run(message.job)))

    def _run(self, job: Job) -> Done | Failed:
        """Run the job. Raises torch.AcceleratorError: this process's GPU is then unusable."""
        try:
            result = self._runner.execute(job)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            logger.exception(
                "job %d of %s failed on rank %d", job.job_id, job.model, self._group.rank
            )
            message = f"{type(error).__name__}: {error}"
            return Failed(job.job_id, message, self._group.num_calls)
        if self._group.rank:  # the unit hears these from rank 0
            result = replace(result, logprobs={}, prompt_logprobs={})
        return Done(result)


def rank_spec(spec: UnitSpec, rank: int) -> UnitSpec:
    """Return what one rank loads and runs: its device, its part of the processor's threads."""
    device = spec.rank_devices[rank] if spec.rank_devices else spec.device
    return replace(spec, device=device, num_threads=max(1, spec.num_threads // spec.tp))


def main(control_fd: int, rank: int, meeting_point: Path) -> int:
    """Serve one unit to its end; return the exit status."""

    def load(spec: UnitSpec) -> tuple[UnitRunner, ProcessGroup]:
        mine = rank_spec(spec, rank)
        backend = backend_for(spec.rank_devices or [spec.device])
        group = ProcessGroup(rank, spec.tp, mine.device, meeting_point, backend)
        is_cpu = torch.device(mine.device).type == "cpu"
        capture = None if is_cpu or group.is_recordable else CallAgain()
        return UnitRunner(mine, capture=capture, group=group), group

    def serve(_: UnitSpec, loaded: tuple[UnitRunner, ProcessGroup], control: FrameSocket) -> None:
        runner, group = loaded
        Rank(runner, group, control).serve()
        group.close()

    def explain(said: str) -> str:
        return f"rank {rank}: {said.splitlines()[0]}"  # CUDA's are followed by advice

    try:
        return serve_unit(f"mux-rank-{rank}", control_fd, load, serve, explain)
    except (BrokenPipeError, ConnectionResetError):
        logger.info("rank %d: the unit went first", rank)
        return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
