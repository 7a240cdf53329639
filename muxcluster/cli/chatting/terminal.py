"""The terminal's side of a chat: questions from standard input, answers to standard output."""

import contextlib
import sys
from collections.abc import Iterator

import typer

from muxcluster.cli.chatting.conversation import Conversation
from muxcluster.cli.terminal.telling import tell
from muxcluster.core.errors import MuxClusterError

# Where it exists, `input` edits lines and remembers them once it is imported.
with contextlib.suppress(ImportError):
    import readline  # noqa: F401

PROMPT = ">>> "
COMMANDS = "/exit (or Ctrl-D) ends, /clear begins anew, Ctrl-C stops an answer"
_KEPT = frozenset("\n\t")


def talk(conversation: Conversation) -> None:
    """Ask every line of standard input until /exit or its end.

    On a terminal a failed question is reported and the next one can be typed. Otherwise the first
    failure ends it; raises what `Conversation.ask` does.
    """
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        tell(COMMANDS)
    for line in _lines(is_terminal=is_terminal):
        if line == "/exit":
            return
        if line == "/clear":
            conversation.forget()
        elif line.startswith("/") and " " not in line:
            tell(COMMANDS)
        elif line:
            try:
                answer(conversation, line)
            except MuxClusterError as error:
                if not is_terminal:
                    raise
                tell(f"muxcluster: {' '.join(str(error).split())}")


def answer(conversation: Conversation, question: str) -> None:
    """Print the answer as it comes; SIGINT stops it, and nothing else."""
    pieces = conversation.ask(question)
    try:
        for piece in pieces:
            typer.echo(printable(piece), nl=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        typer.echo(" [stopped]", nl=False)
    finally:
        pieces.close()
        typer.echo()
    if conversation.finish_reason == "length":
        tell("(cut off: --max-tokens or the model's context is used up)")


def printable(text: str) -> str:
    """Return the text without the control characters that a terminal would obey."""
    return "".join(each for each in text if each in _KEPT or each.isprintable() or each == "\u200d")


def _lines(*, is_terminal: bool) -> Iterator[str]:
    """Yield stripped lines until the end of the input. SIGINT at the prompt shows the commands."""
    while True:
        try:
            yield input(PROMPT if is_terminal else "").strip()
        except EOFError:
            if is_terminal:
                typer.echo()
            return
        except KeyboardInterrupt:
            if not is_terminal:
                raise
            tell(f"\n{COMMANDS}")
