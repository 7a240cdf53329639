"""Text that every Python has: docstrings of its standard library, read without importing it."""

import ast
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

# Modules with much prose that every supported Python has (a missing one is left out).
MODULES = (
    "argparse",
    "bisect",
    "calendar",
    "collections/__init__",
    "contextlib",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "doctest",
    "email/message",
    "fractions",
    "functools",
    "heapq",
    "inspect",
    "logging/__init__",
    "mailbox",
    "optparse",
    "os",
    "pathlib",
    "pickletools",
    "random",
    "shutil",
    "statistics",
    "string",
    "subprocess",
    "tarfile",
    "textwrap",
    "threading",
    "tempfile",
    "typing",
    "unittest/case",
    "unittest/mock",
    "urllib/request",
    "zipfile",
)

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@lru_cache(maxsize=1)
def docstrings() -> tuple[str, ...]:
    """The docstrings of `MODULES` in source order; the same for the same Python release.

    Raises FileNotFoundError if the standard library comes without its sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = [file for name in MODULES if (file := root / f"{name}.py").is_file()]
    found = tuple(text for file in files for text in _docstrings_of(file))
    if not found:
        raise FileNotFoundError(f"no sources of the standard library under {root}")
    return found


def _docstrings_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield text
