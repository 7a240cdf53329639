"""One server for all attacks, which has to survive them one after another."""

from collections.abc import Iterator

import pytest

from tests.http.attacks.target import Target, running
from tests.http.live_server import configured


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running(configured(tmp_path_factory.mktemp("attacked"))) as found:
        yield found
