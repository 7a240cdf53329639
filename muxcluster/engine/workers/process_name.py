"""The name of this process."""

from pathlib import Path


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show (15 characters); on Linux only."""
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text(name)
