"""`muxcluster chat`: talk to a model of a running server."""

from typing import Annotated

import typer

from muxcluster.cli.chatting.conversation import Conversation, Server
from muxcluster.cli.chatting.terminal import talk
from muxcluster.cli.keys import key_option


def chat(  # noqa: PLR0913 - each parameter is an option of the command line
    model: Annotated[str, typer.Argument(help="Name of the model, as the server has it.")],
    url: Annotated[
        str, typer.Option(envvar="MUXCLUSTER_URL", help="Where the server listens.")
    ] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(envvar="MUXCLUSTER_API_KEY", callback=key_option, help="The server's key."),
    ] = None,
    system: Annotated[str, typer.Option(help="The system message.")] = "",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer, in tokens.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, max=2.0, help="0 takes the likeliest token.")
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Longest wait for the next part of an answer.")
    ] = 600.0,
) -> None:
    """Talk to MODEL: each line is a question, answers are streamed.

    /exit or Ctrl-D ends, /clear begins anew, Ctrl-C stops an answer only. Lines that are piped in
    are answered one after the other; the first failure ends it then.

    Examples: muxcluster chat chat-7b
              echo "What is a KV cache?" | muxcluster chat chat-7b --max-tokens 100
    """
    server = Server.at(url, api_key, timeout_s)
    server.check_serves(model)
    options = {"max_tokens": max_tokens, "temperature": temperature}
    given = {name: value for name, value in options.items() if value is not None}
    talk(Conversation(server, model, system, given))
