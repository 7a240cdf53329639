"""The mask process of a machine that has no processor for work of the lowest priority."""

import threading
from collections.abc import Callable
from typing import Any, NoReturn

from muxcluster.constraints.process import keeper, server
from muxcluster.constraints.process.priority import Starved


def starve(work: Callable[[], Any]) -> NoReturn:
    threading.Thread(target=work, daemon=True).start()
    raise Starved(threading.Event())


if __name__ == "__main__":
    keeper.run_quietly = server.run_quietly = starve
    keeper.main()
