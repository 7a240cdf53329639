"""Requests with constraints, from their arrival until the grammar is known to be sound."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from muxcluster.constraints.process.supervisor import MaskProcess
from muxcluster.constraints.rows import MaskModel
from muxcluster.core.events import Finished, FinishReason, Rejected
from muxcluster.core.request import Request
from muxcluster.core.unitspec import UnitSpec

logger = logging.getLogger(__name__)

# a grammar that takes long to compile must not hold up those behind it; more would wait for the
# processor
_NUM_THREADS = 2


def mask_process(spec: UnitSpec) -> MaskProcess:
    """Return the process that makes masks for the unit's models; it starts when it is needed."""
    return MaskProcess(
        tuple(
            MaskModel(model.name, model.path, model.vocab_size, model.eos_token_ids)
            for model in spec.models
        )
    )


class ConstraintChecks:
    """Checks grammars on threads of its own; the unit goes on meanwhile.

    `post` gets each request that can run, or what ends it: called on a thread of this, without
    locks. It asks `end` whether the request is still wanted.
    """

    def __init__(
        self, process: MaskProcess, post: Callable[[Request | Rejected | Finished], None]
    ) -> None:
        self._process = process
        self._post = post
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "constraints")

    def __len__(self) -> int:
        """Number of requests that are being checked."""
        return len(self._open)

    def begin(self, request: Request) -> None:
        """Check the request's constraint. Returns at once."""
        with self._lock:
            self._open.add(request.request_id)
        self._threads.submit(self._check, request)

    def abort(self, request_id: str) -> Finished | None:
        """Return the end of a request that is being checked; None if it is not."""
        return Finished(request_id, FinishReason.ABORT) if self.end(request_id) else None

    def end(self, request_id: str) -> bool:
        """Note that a request is checked; False if it was aborted meanwhile."""
        with self._lock:
            is_open = request_id in self._open
            self._open.discard(request_id)
            return is_open

    def close(self) -> None:
        """Drop what is being checked, and end the process."""
        with self._lock:
            self._open.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._process.close()

    def _check(self, request: Request) -> None:
        constraint = request.sampling.constraint
        assert constraint is not None
        request_id = request.request_id
        outcome: Request | Rejected | Finished = request
        try:
            why = self._process.check(request.model, constraint)
            if why is not None:
                outcome = Rejected(request_id, "invalid_value", why)
        except Exception as error:
            # whatever it is, the request must end
            logger.exception("the grammar of %s cannot be checked", request_id)
            outcome = Finished(request_id, FinishReason.ERROR, message=str(error))
        self._post(outcome)
