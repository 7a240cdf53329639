"""Print constraints.txt: the versions, here, of all that `muxcluster[serve,plot]` needs.

Run it where the test suite has passed: `make constraints`.
"""

from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_HEAD = """\
# Versions with which the test suite passed: pip install -c constraints.txt 'muxcluster[serve]'.
# On Linux torch is its build for CPUs, without gigabytes of CUDA libraries: pass the wheel index
# that PyTorch's site names for it with --extra-index-url. On GPUs take out the line of torch.
# Made by make constraints."""
_EXTRAS = frozenset({"serve", "plot"})
_APART = ("torch", "setuptools")  # its own lines below; comes with each environment


def _gather(name: str, extras: frozenset[str], found: dict[str, str]) -> None:
    """Add the versions of all that a distribution needs here to `found`."""
    wanted = [Requirement(text) for text in distribution(name).requires or ()]
    for each in wanted:
        if each.marker and not any(each.marker.evaluate({"extra": one}) for one in (*extras, "")):
            continue
        key = canonicalize_name(each.name)
        if key in found and not each.extras:
            continue
        try:
            found[key] = distribution(key).version
        except PackageNotFoundError:  # of another platform
            continue
        _gather(key, frozenset(each.extras), found)


def constraints() -> str:
    """Return the text of the file."""
    found: dict[str, str] = {}
    _gather("muxcluster", _EXTRAS, found)
    lines = [f"{name}=={version}" for name, version in found.items() if name not in _APART]
    torch = found["torch"].partition("+")[0]
    lines.append(f'torch=={torch}+cpu; sys_platform == "linux"')
    lines.append(f'torch=={torch}; sys_platform != "linux"')
    return "\n".join((_HEAD, *sorted(lines), ""))


if __name__ == "__main__":
    print(constraints(), end="")
