"""The option that takes an API key, checked."""

import typer

from muxcluster.core.inputs.api_key import checked_key


def key_option(value: str | None) -> str | None:
    """Callback of such options: `value` itself. Raises BadParameter."""
    try:
        return None if value is None else checked_key(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
