"""Lines about what a command is doing, on standard error."""

import typer


def tell(line: str) -> None:
    """Print a line on standard error, which is none of the command's result."""
    typer.echo(line, err=True)
