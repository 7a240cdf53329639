"""A server that answers with what it is told, for commands that call one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.local_http import QuietHandler, running


@dataclass
class Scripted:
    """What a server answers, and what it was asked."""

    url: str = ""
    status: int = 200
    answer: object = None
    asked: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def scripted_server(answer: object = None) -> Iterator[Scripted]:
    """A running server; `answer` may be changed later."""
    found = Scripted(answer=answer)

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            found.keys.append(self.headers["Authorization"])
            self.send(json.dumps(found.answer).encode(), found.status)

        do_POST = do_GET

    with running(Handler) as found.url:
        yield found
