"""A worker that loads nothing and says what MUXCLUSTER_SAYS tells it to.

"ids": as many multiprocessors as its share of 100; "all": all of them; "busy": CUDA's words;
"late": nothing; "end": it ends. "sized": as many as the manifest has tensors, and it reads that
only when the file MUXCLUSTER_READS_AFTER is there.
"""

import os
import socket
import sys
import time
from pathlib import Path

from muxcluster.channel.frames import FrameSocket
from muxcluster.engine.gpu.mps.messages import StartFailed, WorkerReady, encode, read

BUSY = "RuntimeError: CUDA-capable device(s) is/are busy or unavailable"

if __name__ == "__main__":
    says = os.environ["MUXCLUSTER_SAYS"]
    stream = FrameSocket(socket.socket(fileno=int(sys.argv[1])))
    while says == "sized" and not Path(os.environ["MUXCLUSTER_READS_AFTER"]).exists():
        time.sleep(0.02)
    start = read(int(sys.argv[2]))
    if says == "end":
        sys.exit(7)
    if says == "late":
        time.sleep(60)
    if says == "busy":
        stream.send(encode(StartFailed(BUSY)))
    elif says == "sized":
        stream.send(encode(WorkerReady(tuple(range(len(start.manifest.tensors))))))
    else:
        count = (
            round(float(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])) if says == "ids" else 100
        )
        stream.send(encode(WorkerReady(tuple(range(count)))))
    stream.recv()
