"""Host frames: blocks of host memory that keep what interactive sequences overwrite."""

import numpy as np
from numpy.typing import NDArray

from muxcluster.kvcache.free_ids import IdStack


class HostFrames:
    """`num_frames` frames, each as large as a block and laid out like one.

    A frame is free, held, or dying: given back while a running job still touches it, and free for
    others when that job has ended.
    """

    def __init__(self, num_frames: int) -> None:
        self.num_frames = num_frames
        self._stack = IdStack(num_frames)
        self._num_jobs = np.zeros(num_frames, dtype=np.int16)
        self._is_dying = np.zeros(num_frames, dtype=np.bool_)

    @property
    def free(self) -> int:
        """Frames that may be taken now."""
        return len(self._stack)

    @property
    def dying(self) -> NDArray[np.intp]:
        """Frames given back that a running job still touches, [n]."""
        return np.flatnonzero(self._is_dying)

    def take(self, count: int) -> NDArray[np.int32]:
        """Hold `count` free frames, int32 [count]; the caller has checked that they are there."""
        return self._stack.take(count)

    def give(self, frames: NDArray[np.int32]) -> None:
        """Give back held `frames` (distinct), at once or when their running job has ended."""
        is_busy = self._num_jobs[frames] > 0
        if not np.count_nonzero(is_busy):
            self._stack.give(frames)
            return
        self._is_dying[frames[is_busy]] = True
        self._stack.give(frames[~is_busy])

    def touch(self, frames: NDArray[np.int32]) -> None:
        """A job that is about to run copies into `frames` (distinct)."""
        self._num_jobs[frames.astype(np.intp)] += 1

    def settle(self, frames: NDArray[np.int32]) -> None:
        """The job that touched `frames` (distinct) has ended."""
        places = frames.astype(np.intp)
        num_jobs = self._num_jobs[places] - 1
        self._num_jobs[places] = num_jobs
        is_dying = self._is_dying[places]
        if not np.count_nonzero(is_dying):
            return
        done = frames[is_dying & (num_jobs == 0)]
        self._is_dying[done] = False
        self._stack.give(done)

    def check(self, held: NDArray[np.int32]) -> None:
        """Raise AssertionError unless free, dying and `held` frames are all frames, each once."""
        assert (self._num_jobs >= 0).all(), "a frame is settled more often than touched"
        assert (self._num_jobs[self._is_dying] > 0).all(), "a dying frame that nobody touches"
        assert not self._num_jobs[self._stack.ids].any(), "a running job touches a free frame"
        every = np.concatenate((self._stack.ids, self.dying, held))
        assert np.array_equal(np.sort(every), np.arange(self.num_frames)), (
            "frames leaked or doubled"
        )
