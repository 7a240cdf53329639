"""Files for a lent machine: missing wheels, and a check of the total size.

The machine gets the files that git knows, those that it does not ignore, and ignored folders that
are named (.whl with wheels; build/returned with the records of an earlier try). It has torch,
triton, transformers, numpy and scipy; nothing can be fetched there.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.pop(0)  # the script's folder, whose kernels.py would hide the package
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.harness import COMMIT_VARIABLE, ROOT, source

WHEELS = ROOT / ".whl"
CARRIED = (".whl", "build/returned")
LIMIT_BYTES = 64 << 20
# Not on that machine, and needed: by worker processes alone (partition mps). None of them needs
# another package.
NEEDED = ("msgspec",)
PYTHON = (3, 12)
_GLIBC = 39  # Of that machine, 2.39
_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
_LEGACY_GLIBC = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}


def fault_of(name: str) -> str | None:
    """Why the wheel of that file name cannot be installed there; None: it can."""
    match = re.fullmatch(r"[^-]+-[^-]+(?:-\d[^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl", name)
    if match is None:
        return "not the name of a wheel"
    pythons, abis, platforms = (tags.split(".") for tags in match.groups())
    if not any(_fits_python(python, abi) for python in pythons for abi in abis):
        return f"for {'.'.join(pythons)}-{'.'.join(abis)}, not for Python 3.{PYTHON[1]}"
    if not any(_fits_platform(platform) for platform in platforms):
        return f"for {'.'.join(platforms)}, not for Linux on x86_64 with glibc 2.{_GLIBC}"
    return None


def _fits_python(python: str, abi: str) -> bool:
    major, minor = PYTHON
    if python in (f"py{major}", f"py{major}{minor}") and abi == "none":
        return True
    if not re.fullmatch(rf"cp{major}\d+", python):
        return False
    since = int(python[len(f"cp{major}") :])
    exact = since == minor and abi in (f"cp{major}{minor}", "none")
    return exact or (since <= minor and abi == "abi3")


def _fits_platform(platform: str) -> bool:
    if platform == "any":
        return True
    match = re.fullmatch(r"(manylinux\w*?)_x86_64", platform)
    if match is None:
        return platform == "linux_x86_64"
    name = match.group(1)
    if name in _LEGACY_GLIBC:
        return True
    version = re.fullmatch(r"manylinux_2_(\d+)", name)
    return version is not None and int(version.group(1)) <= _GLIBC


def faults_in(folder: Path) -> list[str]:
    """What is wrong with the wheels that lie there, in words."""
    found = [
        f"{path.name}: {fault}"
        for path in sorted(folder.glob("*"))
        if (fault := fault_of(path.name))
    ]
    names = [path.name.partition("-")[0] for path in folder.glob("*.whl")]
    found += [f"{name}: two versions, of which pip installs none" for name in _twice(names)]
    found += [f"{name}: no wheel" for name in NEEDED if name not in names]
    return found


def _twice(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def files_that_travel() -> Iterator[Path]:
    """What git knows or does not ignore, and what lies in the carried folders."""
    listed = subprocess.run(
        ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = set(filter(None, listed.stdout.split("\0")))
    carried = (path for folder in CARRIED for path in (ROOT / folder).rglob("*"))
    found = {*(ROOT / name for name in names), *carried}
    yield from sorted(path for path in found if path.is_file() and not path.is_symlink())


def check_size() -> bool:
    """Print what would travel, and the largest of it; False where it is too much."""
    sizes = {path: path.stat().st_size for path in files_that_travel()}
    total = sum(sizes.values())
    print(f"{len(sizes)} files, {total / 2**20:.1f} of {LIMIT_BYTES >> 20} MiB would travel")
    if total <= LIMIT_BYTES:
        return True
    for path in sorted(sizes, key=sizes.__getitem__, reverse=True)[:10]:
        print(f"   {sizes[path] / 2**20:8.1f} MiB {path.relative_to(ROOT)}")
    return False


def check_wheels() -> bool:
    """Print what lies in .whl; False where something is wrong with it."""
    faults = faults_in(WHEELS)
    for path in sorted(WHEELS.glob("*.whl")):
        print(f"wheel {path.name}, {path.stat().st_size / 1024:.0f} KiB")
    for fault in faults:
        print(f"FAULT {fault}")
    return not faults


def download() -> bool:
    """Put the wheels that are needed into .whl, nothing else; False where pip cannot."""
    WHEELS.mkdir(exist_ok=True)
    for path in WHEELS.glob("*.whl"):
        path.unlink()
    platforms = [option for name in _PLATFORMS for option in ("--platform", f"{name}_x86_64")]
    command = (
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        *("--only-binary=:all:", "--implementation", "cp"),
        *("--python-version", f"{PYTHON[0]}.{PYTHON[1]}", *platforms),
        *("--dest", str(WHEELS), *NEEDED),
    )
    return subprocess.run(command, check=False).returncode == 0


def print_lines() -> None:
    """What to type on the machine."""
    print(f"carry: {' '.join(folder for folder in CARRIED if (ROOT / folder).is_dir())}")
    state = source()
    if state["changed_files"]:
        print(f"not committed: {' '.join(state['changed_files'])}")
    for call in "ABC":
        print(f"{COMMIT_VARIABLE}={state['commit']} bash bench/gpu/lease.sh {call}")


def main() -> int:
    """Do what the options say, in their sensible order; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("prepare", "wheels", "check-wheels", "check-size"):
        parser.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args()
    fine = True
    if asked.wheels or asked.prepare:
        fine &= download()
    if asked.wheels or asked.check_wheels or asked.prepare:
        fine &= check_wheels()
    if asked.check_size or asked.prepare:
        fine &= check_size()
    if asked.prepare and fine:
        print_lines()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
