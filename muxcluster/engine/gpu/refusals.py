"""Known failures of SM partitions, with messages that say what to do about them."""

from collections.abc import Mapping, Sequence

NO_CONTROL = (
    "nvidia-cuda-mps-control is not on the PATH: it comes with the NVIDIA driver (in a container, "
    "with the compute utilities); or use policy.partition green or none"
)
NOT_STARTED = (
    "the MPS control daemon did not start: nvidia-cuda-mps-control -d ended with {code}: {said}"
)
ANOTHER_DAEMON = (
    "another MPS daemon owns this GPU ({said}): stop it, or use policy.partition green or none"
)
EXCLUSIVE = (
    "the GPU refuses a context ({said}): it is in compute mode EXCLUSIVE_PROCESS and some other "
    "process or MPS server has it; end that one (we never change the compute mode)"
)
NO_SERVER = "a process cannot reach the MPS server ({said}); the daemon's log ends: {log}"
NO_SERVER_IN_CONTAINER = (
    "a process cannot reach the MPS server ({said}): this is a container, and MPS needs the IPC "
    "namespace and /dev/shm of its server; start the container with --ipc=host; the daemon's log "
    "ends: {log}"
)
TOO_MANY_CLIENTS = (
    "the MPS server takes no more processes ({said}): fewer models or rungs, or partition green"
)
NOT_HONOURED = (
    "SM share {share:g} of worker {worker} is not honoured: its work ran on {seen} of {whole} "
    "multiprocessors, about {wanted} were asked for"
)
EQUAL_SHARES = (
    "SM shares {low:g} and {high:g} of worker {worker} are equal or swapped: work ran on "
    "{low_seen} and {high_seen} multiprocessors"
)
OVERLAP = (
    "SM shares {first:g} of worker {first_worker} and {second:g} of worker {second_worker} should "
    "be apart, but their work ran on {shared} multiprocessors in common"
)
IPC_REFUSED = (
    "CUDA IPC is refused ({reason}): owner and workers must see the same GPU in the same IPC and "
    "PID namespace (in a container, --ipc=host); or use policy.partition green or none"
)
NOT_PLAIN_MEMORY = (
    "CUDA IPC needs memory of plain cudaMalloc, and torch is told otherwise ({what}): unset it, or "
    "use policy.partition green or none"
)
GPU_TAKEN = (
    "GPU {gpu_id} already has a unit of ours (process {holder}): its SM shares are not divided "
    "twice; stop that unit first"
)
CLIENT_REFUSED = "the MPS daemon starts, but a client under it fails: {said}"
CLIENT_LATE = "the MPS daemon starts, but a client under it has done nothing after {seconds:.0f} s"
NO_CLIENT = "the MPS daemon starts, but a client runs without it: the daemon has no server"
WORKER_LATE = "worker process {worker} at SM share {share:g} was not ready after {seconds:.0f} s"
WORKER_ENDED = "worker process {worker} at SM share {share:g} ended at its start: {status}"
NO_GREEN = "this driver has no green contexts ({reason}): CUDA 12.4 or later is needed"

_EXCLUSIVE_MARKS = ("busy or unavailable", "DEVICE_UNAVAILABLE", "exclusive")
_SERVER_MARKS = ("MPS_CONNECTION_FAILED", "MPS_SERVER_NOT_READY", "MPS_RPC_FAILURE", "MPS client")
_FULL_MARKS = ("MPS_MAX_CLIENTS", "MPS_MAX_CONNECTIONS", "max number of")
_RUNNING_MARKS = ("already running", "another")


def why_not_started(code: int, said: str) -> str:
    """Return the meaning of the daemon's exit code and output."""
    if _has(said, _RUNNING_MARKS):
        return ANOTHER_DAEMON.format(said=_line(said))
    return NOT_STARTED.format(code=code, said=_line(said) or "nothing")


def why_no_context(said: str, log: str, *, in_container: bool) -> str:
    """Return the meaning of a worker's CUDA error at its start; unknown errors stay as they are.

    log: the end of the daemon's log.
    """
    said = _line(said)
    if _has(said, _FULL_MARKS):
        return TOO_MANY_CLIENTS.format(said=said)
    if _has(said, _SERVER_MARKS):
        text = NO_SERVER_IN_CONTAINER if in_container else NO_SERVER
        return text.format(said=said, log=_line(log) or "nothing")
    if _has(said, _EXCLUSIVE_MARKS):
        return EXCLUSIVE.format(said=said)
    return said


def is_container(environment: Mapping[str, str], marks: Sequence[bool]) -> bool:
    """Return whether this process runs in a container.

    environment: of this process. marks: whether files exist that container runtimes make.
    """
    return any(marks) or "container" in environment or "KUBERNETES_SERVICE_HOST" in environment


def _has(said: str, marks: Sequence[str]) -> bool:
    return any(mark.lower() in said.lower() for mark in marks)


def _line(text: str) -> str:
    return " ".join(text.split())[-400:]
