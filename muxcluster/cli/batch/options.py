"""Options shared by the commands that talk to a server."""

from pathlib import Path
from typing import Annotated

import typer

from muxcluster.cli.keys import key_option

Url = Annotated[
    str,
    typer.Option(
        "--url",
        "--server",
        envvar=["MUXCLUSTER_URL", "OPENAI_BASE_URL"],
        help="Where the server listens.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        envvar=["MUXCLUSTER_API_KEY", "OPENAI_API_KEY"],
        callback=key_option,
        help="The server's key.",
    ),
]
BatchId = Annotated[str, typer.Argument(help="As submit printed it, batch_...")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON. Example: --json | jq .status")]
LOCAL = "http://127.0.0.1:8000"
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Wait for the end; answers go there. Example: -o answers.jsonl"
    ),
]
