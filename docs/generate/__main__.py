"""Write all generated pages, drawings and blocks again: `python -m docs.generate [--check]`.

With `--check` nothing is written; the exit code is 1 where a file is not up to date.
"""

import sys

from docs.generate.records import ROOT
from docs.generate.site import outdated


def main() -> None:
    """Write or check."""
    is_check = sys.argv[1:] == ["--check"]
    found = outdated()
    for path, content in found.items():
        print(f"{'not up to date' if is_check else 'written'}: {path.relative_to(ROOT)}")
        if not is_check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    sys.exit(1 if is_check and found else 0)


if __name__ == "__main__":
    main()
