"""Program of the process of preloaded.py: imports what engines need, then forks on request.

A request is ("fork", [module, arguments...], environment, folder, [descriptors]), sent with the
child's standard error and those descriptors, which the arguments name: the answer is the child's
id. Or it is ("poll", id): the answer is the child's status as of subprocess, None while it runs.
"""

import fcntl
import os
import pickle
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transformers import LlamaForCausalLM, OPTForCausalLM, Qwen3ForCausalLM

from muxcluster.engine.parallel import rank, rank_owner
from muxcluster.engine.residency import pool_owner

PRELOADED = (LlamaForCausalLM, OPTForCausalLM, Qwen3ForCausalLM, rank, rank_owner, pool_owner)
REQUEST_BYTES = 2**20
MOST_DESCRIPTORS = 8
FIRST_FREE = 500  # above all descriptors that an engine names


class Program(NamedTuple):
    """What a child becomes. descriptors: those received, its standard error first."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    numbers: Sequence[int]
    descriptors: Sequence[int]

    def prepare(self) -> str:
        """Make this process look as if it had just been started; return the module to run."""
        os.setpgid(0, 0)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        null = os.open(os.devnull, os.O_RDWR)
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD, FIRST_FREE) for each in self.descriptors]
        for each in self.descriptors:
            os.close(each)
        for source, target in zip((null, null, *moved), (0, 1, 2, *self.numbers), strict=True):
            os.dup2(source, target)
        for each in (*moved, *({null} - {*self.numbers})):
            os.close(each)
        module, *arguments = self.command
        sys.argv = [module, *arguments]
        sys.path[0] = self.folder
        sys.modules.pop(module, None)
        return module


def serve(stream: socket.socket) -> Program | None:
    """Answer requests to the end of the stream; return, in a child, what it is to become."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(stream, REQUEST_BYTES, MOST_DESCRIPTORS)
        if not request:
            return None
        kind, *rest = pickle.loads(request)
        if kind == "poll":
            stream.send(pickle.dumps(status_of(*rest)))
            continue
        pid = os.fork()
        if pid == 0:
            stream.close()
            return Program(*rest, descriptors)
        for each in descriptors:
            os.close(each)
        stream.send(pickle.dumps(pid))


def status_of(pid: int) -> int | None:
    """Return the exit status of a child, the negative signal that ended it, or None."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


if __name__ == "__main__":
    found = serve(socket.socket(fileno=int(sys.argv[1])))
    if found is not None:
        runpy.run_module(found.prepare(), run_name="__main__", alter_sys=True)
