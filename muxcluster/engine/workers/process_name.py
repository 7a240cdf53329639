"""The name of this process."""

from pathlib import Path


def name_process(name: str) -> None:
    """What `ps` and `top` show (15 characters); only Linux can."""
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text(name)
