"""`muxcluster pin`: keep a model's weights from being parked."""

from typing import Annotated

import typer

from muxcluster.cli.batch.options import LOCAL, Json, Url
from muxcluster.cli.weights.server import AdminKey, ModelName, Timeout, Unit, move


def pin(  # noqa: PLR0913 - each parameter is an option of the command line
    model: ModelName,
    off: Annotated[bool, typer.Option("--off", help="Unpin it.")] = False,
    unit: Unit = None,
    url: Url = LOCAL,
    admin_key: AdminKey = None,
    timeout_s: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Wake MODEL and park it for no other model, until it is unpinned or its unit restarts.

    Examples: muxcluster pin chat-7b
              muxcluster pin chat-7b --off
    """
    path = "unpin" if off else "pin"
    move(url, admin_key, path, {"model": model, "unit": unit}, timeout_s, as_json=as_json)
