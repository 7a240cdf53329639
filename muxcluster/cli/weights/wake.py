"""`muxcluster wake`: bring a parked model's weights back."""

from muxcluster.cli.batch.options import LOCAL, Json, Url
from muxcluster.cli.weights.server import AdminKey, ModelName, Timeout, Unit, move


def wake(
    model: ModelName,
    unit: Unit = None,
    url: Url = LOCAL,
    admin_key: AdminKey = None,
    timeout_s: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Wake MODEL on every unit that has it, end a hold, and wait until its requests can run.

    Example: muxcluster wake chat-7b
    """
    move(url, admin_key, "wake_up", {"model": model, "unit": unit}, timeout_s, as_json=as_json)
