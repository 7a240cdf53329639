"""What a route makes of a request, and the names of its fields in errors."""

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from muxcluster.core.errors import RequestError
from muxcluster.http.answers.responses import Answers
from muxcluster.http.answers.wire import Json
from muxcluster.http.calls.call import Call, RequestHead
from muxcluster.text.schemas import GenerationBody

# of fields: a pattern at the start of the chat request's name, and what the API calls it
Names = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request after its route has read it."""

    body: GenerationBody  # what the service answers
    answers: Callable[[Call], Answers]  # how the API writes that
    names: Names = ()  # of fields that the API calls otherwise than `body`
    # Keeps what `answers` wrote, before the client has its end; None: nothing is kept
    keep: Callable[[], Awaitable[None]] | None = None
    # Begins to answer, and returns what the client gets meanwhile; None: the client waits
    later: Callable[[RequestHead], Awaitable[Json]] | None = None


@contextmanager
def naming(names: Names) -> Iterator[None]:
    """Raise a RequestError about a chat's field as one about the field of the API."""
    try:
        yield
    except RequestError as error:
        raise renamed(error, names) from None


def renamed(error: RequestError, names: Names) -> RequestError:
    """Return `error` with the API's name of its field."""
    if error.param is None:
        return error
    param = error.param
    for pattern, name in names:
        param = re.sub(f"^{pattern}", name, param)
    return type(error)(error.message.replace(error.param, param), param)
