"""Calls of the command line inside the test process."""

from muxcluster.cli import main as entry


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    code = entry.run(list(arguments))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def refusal(capsys, *arguments: str) -> str:
    """The one line on stderr of a call that must end with exit code 2 and print nothing."""
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, ""), err
    assert err.startswith("muxcluster: ")
    assert err.count("\n") == 1
    return err
