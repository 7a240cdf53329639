"""PID 1 of a test host: makes its mounts, reaps its processes, ends with its starter.

Run by `unshare`, with one argument, a JSON object: hostname, binds (source, target pairs, mounted
in order, read-write), keep (paths of this machine that stay visible below a bound target).
When standard input closes, this process ends, and the kernel ends every other one of the host.
"""

import json
import os
import signal
import subprocess
import sys


def main() -> None:
    """Set up, say the PID that it has outside, and wait for the end of input."""
    settings = json.loads(sys.argv[1])
    outer_pid = os.readlink("/proc/self")
    run("mount", "--make-rprivate", "/")
    for source, target in settings["binds"]:
        for path in settings["keep"]:
            if path.startswith(target + "/"):
                inside = source + path[len(target) :]
                os.makedirs(inside, exist_ok=True)
                run("mount", "--bind", path, inside)
                run("mount", "-o", "remount,bind,ro", inside)
    run("mount", "-o", "remount,bind,ro", "/")
    for source, target in settings["binds"]:
        run("mount", "--rbind", source, target)
        run("mount", "-o", "remount,bind,rw", target)
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    run("mount", "-t", "proc", "proc", "/proc")
    os.mkdir("/run/sshd", 0o755)
    run("hostname", settings["hostname"])
    run("ip", "link", "set", "lo", "up")
    signal.signal(signal.SIGCHLD, reap)
    sys.stdout.write(f"{outer_pid}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()


def run(*command: str) -> None:
    """Run it; the host does not start where it fails."""
    subprocess.run(command, check=True)


def reap(signum: int, frame: object) -> None:
    """Wait for every ended child: PID 1 inherits the orphans of the host."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] > 0:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main()
