"""Print median and largest file and function lengths of the packages (STYLE: aim 100 and 10)."""

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("muxcluster", "placement", "kernels")
FILE_LIMIT = 300
FUNCTION_LIMIT = 50


def functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Name and lines of body of every function and method below `tree`.

    Signatures do not count: those of CLI commands are the list of their options.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.body[0].lineno + 1


def main() -> int:
    """Print the table; exit 1 where a file or function passes its limit."""
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    file_lines: dict[str, int] = {}
    function_lines: dict[str, int] = {}
    for path in files:
        text = path.read_text(encoding="utf-8")
        name = str(path.relative_to(ROOT))
        lines = text.count("\n")
        if lines > 1:
            file_lines[name] = lines
        for function, length in functions(ast.parse(text)):
            function_lines[f"{name}:{function}"] = length
    over = 0
    for what, sizes, limit in (
        ("file", file_lines, FILE_LIMIT),
        ("function", function_lines, FUNCTION_LIMIT),
    ):
        largest = max(sizes, key=lambda key: sizes[key])
        print(
            f"{what}s: {len(sizes)}, median {statistics.median(sizes.values()):.0f} lines, "
            f"longest {sizes[largest]} ({largest})"
        )
        for name, lines in sorted(sizes.items(), key=lambda item: -item[1]):
            if lines > limit:
                over += 1
                print(f"  over {limit}: {name} has {lines} lines")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
