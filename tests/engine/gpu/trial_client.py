"""A client of a fake daemon, whose fate is in MUXCLUSTER_CLIENT; run in the place of the real one.

"works", "hangs"; "refused": CUDA's words for a GPU in exclusive mode; "dies": without a word.
"""

import os
import signal
import sys
import time

if __name__ == "__main__":
    assert os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"].endswith("/0/pipe")
    fate = os.environ["MUXCLUSTER_CLIENT"]
    if fate == "hangs":
        time.sleep(300)
    if fate == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "refused":
        sys.stdout.write("RuntimeError: CUDA error: all CUDA-capable devices are busy\n")
        sys.exit(1)
