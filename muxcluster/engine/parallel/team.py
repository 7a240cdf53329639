"""All ranks of one unit, from their start to their end."""

import os
import select
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from muxcluster.core.backends import ModelBackend
from muxcluster.core.errors import EngineFailure
from muxcluster.core.unitspec import UnitSpec
from muxcluster.engine.parallel.rank_link import RankLink, RankLost
from muxcluster.engine.processes.child_process import STOP_GRACE_S
from muxcluster.engine.processes.liveness import Patience, Pulse


def meeting_folder() -> Path:
    """Return a new folder for the files at which ranks meet, in the server's private folder."""
    # That one is cleaned after a kill.
    folder = os.environ.get("MUXCLUSTER_FOLDER")
    within = folder if folder is not None and os.path.isdir(folder) else None
    return Path(tempfile.mkdtemp(prefix="muxcluster-ranks-", dir=within))


class RankProcess(Protocol):
    """The process that loads one rank's part of the models."""

    @property
    def pid(self) -> int: ...

    def fileno(self) -> int:
        """Descriptor to select on for its answer."""
        ...

    def load(self, spec: UnitSpec) -> None:
        """Send it what to load. Raises RankLost."""
        ...

    def loaded(self, spec: UnitSpec) -> tuple[ModelBackend, ...]:
        """Take its answer: how its models run. Raises LoadError, EngineFailure."""
        ...

    def close(self) -> None:
        """Let it end by itself; `reap` must follow."""
        ...

    def reap(self, grace_s: float) -> object:
        """Wait for its end; kill it after `grace_s` seconds."""
        ...


def load_together(
    links: Sequence[RankProcess], spec: UnitSpec, patience: Patience
) -> tuple[ModelBackend, ...]:
    """Let every rank load its part, all at a time; block until all have. Return how models run.

    Raises LoadError with the message of the first that cannot, EngineFailure if a rank died, hung,
    or raised something else. Kill and reap them then: the others may wait for it.
    """
    waiting = list(links)
    backends: tuple[ModelBackend, ...] = ()  # the same on all ranks
    try:
        for link in waiting:
            link.load(spec)
    except RankLost as loss:
        raise EngineFailure(f"{spec.unit_id} cannot start: {loss}") from loss
    pulses = [Pulse(link.pid) for link in links]
    while waiting:
        ready = select.select(waiting, [], [], patience.load_beat_s)[0]
        for link in ready:
            backends = link.loaded(spec)
            waiting.remove(link)
        if not ready:
            for pulse in pulses:
                pulse.beat(is_busy=True)
            if all(pulse.is_silent for pulse in pulses):
                raise EngineFailure(f"the ranks of {spec.unit_id} hung while loading")
    return backends


def stop_together(links: Sequence[RankProcess], folder: Path) -> None:
    """Let the ranks end themselves, kill those that do not, and reap them; delete `folder`.

    folder: where they meet. Idempotent.
    """
    for link in links:
        link.close()
    deadline_s = time.monotonic() + STOP_GRACE_S
    for link in links:
        link.reap(max(0.0, deadline_s - time.monotonic()))
    shutil.rmtree(folder, ignore_errors=True)


class RankTeam:
    """The processes of `spec.tp` ranks, which meet at a file in a directory of their own."""

    def __init__(self, spec: UnitSpec, patience: Patience) -> None:
        self._spec = spec
        self._patience = patience
        self._directory = meeting_folder()
        meeting_point = self._directory / "store"
        self.links = tuple(RankLink(rank, meeting_point, patience) for rank in range(spec.tp))

    def load(self) -> tuple[ModelBackend, ...]:
        """As `load_together`; call `kill` and `stop` if it raises."""
        return load_together(self.links, self._spec, self._patience)

    def beat(self) -> None:
        """Take every pulse. Raises RankLost if a rank was stopped, or no busy rank works."""
        # One busy rank may be silent for long while it waits for another inside a collective.
        for link in self.links:
            link.pulse.beat(is_busy=link.is_busy)
            link.standing.beat(is_busy=False)
            if link.standing.is_silent:
                raise RankLost(f"rank {link.rank} was stopped")
        busy = [link for link in self.links if link.is_busy]
        if busy and all(link.pulse.is_silent for link in busy):
            raise RankLost("no rank goes on with its job")

    @property
    def shows_work(self) -> bool:
        """True if some rank with a job showed a sign of life at the last beat."""
        return any(link.is_busy and not link.pulse.has_missed for link in self.links)

    @property
    def is_doubtful(self) -> bool:
        """True if `beat` will raise soon unless something changes."""
        busy = [link.pulse.is_doubtful for link in self.links if link.is_busy]
        is_stopped = any(link.standing.is_doubtful for link in self.links)
        return is_stopped or (bool(busy) and all(busy))

    def kill(self) -> None:
        for link in self.links:
            link.kill()

    def stop(self) -> None:
        """As `stop_together`."""
        stop_together(self.links, self._directory)
