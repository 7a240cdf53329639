"""Validation of the option for an API key."""

import typer

from muxcluster.core.inputs.api_key import checked_key


def key_option(value: str | None) -> str | None:
    """Return `value`; typer's callback for such options. Raises BadParameter."""
    try:
        return None if value is None else checked_key(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
