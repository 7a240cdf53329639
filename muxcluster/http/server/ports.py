"""The ports of a server: one for all routes, or operators' routes on one of their own."""

from enum import StrEnum

from starlette.types import ASGIApp, Receive, Scope, Send


class Port(StrEnum):
    """The port that a request came through."""

    ALL = "all"
    CLIENTS = "clients"  # all routes but operators'
    ADMIN = "admin"  # operators' routes


def through(port: Port, app: ASGIApp) -> ASGIApp:
    """Return `app` for the listener of a port, which it then knows by `port_of`."""

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["port"] = port
        await app(scope, receive, send)

    return marked


def port_of(scope: Scope) -> Port:
    """Return the port of a request; `ALL` where the server has one."""
    port: Port = scope.get("state", {}).get("port", Port.ALL)
    return port
