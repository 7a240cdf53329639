"""The unit's ends of the memory owners of all ranks."""

import os

from muxcluster.channel.frames import FrameSocket
from muxcluster.core.backends import ModelBackend
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.parallel.rank_link import RankLost
from muxcluster.engine.parallel.team import load_together, meeting_folder, stop_together
from muxcluster.engine.processes.liveness import Patience
from muxcluster.engine.processes.owner_link import ONE_THREAD, OwnerLink

OWNER_MODULE = "muxcluster.engine.parallel.rank_owner"


class RankOwnerLink:
    """One rank's owner."""

    def __init__(self, rank: int, folder: str, patience: Patience) -> None:
        """Start it. folder: where the ranks meet."""
        self.rank = rank
        self._owner = OwnerLink(
            patience,
            module=OWNER_MODULE,
            arguments=(str(rank), folder),
            environment={**os.environ, **ONE_THREAD},
            name=f"rank {rank}",
        )
        self.pulse = self._owner.pulse

    @property
    def pid(self) -> int:
        """Process id; the rank's workers are its children, and in its process group."""
        return self._owner.pid

    def fileno(self) -> int:
        """Descriptor to select on: readable if it has loaded or is gone."""
        return self._owner.control.fileno()

    def load(self, spec: UnitSpec) -> None:
        """As `RankProcess.load`."""
        try:
            self._owner.begin_load(spec)
        except OSError as error:
            raise RankLost(f"rank {self.rank} died") from error

    def loaded(self, spec: UnitSpec) -> tuple[ModelBackend, ...]:
        """As `RankProcess.loaded`."""
        return self._owner.loaded(spec)

    def fork(self, worker_id: int) -> tuple[FrameSocket, int]:
        """Return the stream to a (new) worker, and its process id. Raises RankLost."""
        try:
            return self._owner.fork(worker_id)
        except TimeoutError as error:
            raise RankLost(f"rank {self.rank} hung") from error
        except OSError as error:
            raise RankLost(f"rank {self.rank} died") from error

    def kill(self) -> None:
        """Send SIGKILL to the owner and its workers."""
        self._owner.kill()

    def close(self) -> None:
        """Let it end its workers and itself; `reap` must follow."""
        self._owner.close()

    def reap(self, grace_s: float) -> None:
        self._owner.reap(grace_s)


class RankOwners:
    """The owners of `spec.tp` ranks, from their start to their end."""

    def __init__(self, spec: UnitSpec, patience: Patience) -> None:
        self._spec = spec
        self._patience = patience
        self._folder = meeting_folder()
        self.links = tuple(
            RankOwnerLink(rank, str(self._folder), patience) for rank in range(spec.tp)
        )

    def load(self) -> tuple[ModelBackend, ...]:
        """As `load_together`; call `kill` and `stop` if it raises."""
        return load_together(self.links, self._spec, self._patience)

    def beat(self) -> None:
        """Take every owner's pulse. Raises RankLost if one was stopped."""
        for link in self.links:
            link.pulse.beat(is_busy=False)
            if link.pulse.is_silent:
                raise RankLost(f"rank {link.rank} was stopped")

    @property
    def is_doubtful(self) -> bool:
        """True if `beat` will raise soon unless something changes."""
        return any(link.pulse.is_doubtful for link in self.links)

    def kill(self) -> None:
        for link in self.links:
            link.kill()

    def stop(self) -> None:
        """As `stop_together`."""
        stop_together(self.links, self._folder)
