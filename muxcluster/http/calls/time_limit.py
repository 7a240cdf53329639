"""The time limit of a call that is awaited token by token."""

import asyncio
from types import TracebackType


class TimeLimit:
    """Interrupts what is awaited inside `with limit:` when the time is over, with TimeoutError.

    As `asyncio.timeout_at`, but with one timer for all waits of a call instead of one for each
    token; each wait may be in another task.
    """

    def __init__(self, deadline_s: float) -> None:
        """deadline_s: on the running event loop's clock."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle = self._loop.call_at(deadline_s, self._pass)
        self._has_passed = False
        self._task: asyncio.Task[object] | None = None
        self._num_cancels = 0  # requests to cancel `_task` when the wait began
        self._has_interrupted = False

    def close(self) -> None:
        """Interrupt nothing more. Idempotent."""
        self._timer.cancel()

    def _pass(self) -> None:
        self._has_passed = True
        if self._task is not None:
            self._has_interrupted = True
            self._task.cancel()

    def __enter__(self) -> None:
        task = self._task = asyncio.current_task()
        assert task is not None, "a wait outside a task"
        self._num_cancels = task.cancelling()
        if self._has_passed:
            # what is there already is still returned
            self._timer = self._loop.call_soon(self._pass)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if self._has_passed:
            self._timer.cancel()
        if self._has_interrupted:
            self._has_interrupted = False
            assert task is not None
            is_ours = task.uncancel() <= self._num_cancels
            if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
                raise TimeoutError from error
