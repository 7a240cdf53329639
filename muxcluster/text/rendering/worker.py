"""A render process: takes jobs from the socket that is its standard input until that ends.

It imports jinja2 and nothing heavy, and it ends with its parent, whose end of the socket closes.
"""

import os
import resource
import signal
import socket
import sys

from jinja2 import Template

from muxcluster.text.jinja import chat_environment
from muxcluster.text.rendering.frames import LENGTH, Outcome, ReceivedJob, Reply

MAX_MESSAGE_CHARS = 300


def main() -> None:
    """Arguments: seconds of processor time for a job, bytes of address space."""
    cpu_s, memory_bytes = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # the default action ends the process, whatever it is in the middle of
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    with socket.socket(fileno=os.dup(0)) as stream:
        serve(stream, cpu_s)


def serve(stream: socket.socket, cpu_s: float) -> None:
    """Answer jobs until the stream ends, or memory does."""
    templates: dict[str, Template] = {}
    while True:
        head = receive(stream, LENGTH.size)
        if head is None:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            data = receive(stream, *LENGTH.unpack(head))
            if data is None:
                return
            frame = run(templates, ReceivedJob.of(data)).frame()
            outcome = Outcome.RENDERED
        except MemoryError:
            outcome = Outcome.NO_MEMORY
            frame = Reply(outcome).frame()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        stream.sendall(frame)
        if outcome is Outcome.NO_MEMORY:
            return


def receive(stream: socket.socket, num_bytes: int) -> bytes | None:
    """Return `num_bytes` bytes; None if the stream ends before them."""
    data = bytearray(num_bytes)
    view, num_received = memoryview(data), 0
    while num_received < num_bytes:
        count = stream.recv_into(view[num_received:])
        if count == 0:
            return None
        num_received += count
    return bytes(data)


def run(templates: dict[str, Template], job: ReceivedJob) -> Reply:
    """Return the reply to `job`; templates: compiled so far. Raises MemoryError."""
    try:
        if job.source is not None:
            templates[job.key] = chat_environment().from_string(job.source)
        if job.variables is None:
            return Reply(Outcome.RENDERED)
        text = templates[job.key].render(**job.variables)
        if job.max_chars is not None and len(text) > job.max_chars:
            return Reply(Outcome.TOO_LONG, str(len(text)))
        text.encode()  # lone surrogates, which no tokenizer takes
        return Reply(Outcome.RENDERED, text)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a template raises is its own message
        return Reply(Outcome.REFUSED, message_of(error))


def message_of(error: Exception) -> str:
    """Return the start of the error's text, which a template may have made very long."""
    text = f"{error}" or type(error).__name__
    return text[:MAX_MESSAGE_CHARS].encode(errors="backslashreplace").decode()


if __name__ == "__main__":
    main()
