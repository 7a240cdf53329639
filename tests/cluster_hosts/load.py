"""A load of streams on a host, watched while it runs; its tokens held against another run's."""

import difflib
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from tests.cluster_hosts.hosts import Host

START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream: which ingress, which model, what to ask."""

    url: str
    model: str
    prompt: str
    max_tokens: int
    seed: int
    temperature: float = 0.0


@dataclass(slots=True)
class StreamResult:
    """What came of one stream so far.

    tokens: as text, in order. times: when each event came, seconds of this machine's monotonic
    clock, the first that of the request itself. reason: finish_reason, None until the end and
    where it ended with `error`.
    """

    tokens: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    reason: str | None = None
    error: str | None = None

    def longest_stall_s(self) -> float:
        """The longest time without an event, from the request on."""
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


@dataclass(frozen=True, slots=True)
class Differences:
    """How streams differ from the same streams undisturbed, in tokens; a wrong one is both."""

    num_lost: int
    num_repeated: int


class Load:
    """Streams that run on `host` from now on."""

    def __init__(self, host: Host, specs: Sequence[StreamSpec]) -> None:
        self.specs = tuple(specs)
        name = uuid.uuid4().hex[:8]
        self._out = host.home / f"{name}.jsonl"
        self._log = host.folder / f"{name}.log"
        (host.home / f"{name}.json").write_text(json.dumps([asdict(spec) for spec in specs]))
        self._process = host.start(
            f"~/venv/bin/python -m tests.cluster_hosts.streams {name}.json {name}.jsonl", self._log
        )

    def results(self) -> list[StreamResult]:
        """What came so far, a result a stream in the order of the specs."""
        found = [StreamResult() for _ in self.specs]
        lines = self._out.read_text().split("\n")[:-1] if self._out.exists() else []
        for line in lines:
            row = json.loads(line)
            result = found[row["stream"]]
            result.tokens += row.get("tokens", [])
            result.times.append(row["at"])
            result.reason = row.get("reason", result.reason)
            result.error = row.get("error", result.error)
        return found

    def wait_for_tokens(self, least: int) -> None:
        """Wait until every stream has that many; fails where the load ends before."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while (fewest := min(len(result.tokens) for result in self.results())) < least:
            assert self._process.poll() is None, f"ended with {fewest}: {self._log.read_text()}"
            assert time.monotonic() < deadline, f"a stream has {fewest} tokens only"
            time.sleep(0.1)

    def finish(self, timeout_s: float) -> list[StreamResult]:
        """Wait for the end of all streams. Raises TimeoutExpired."""
        code = self._process.wait(timeout_s)
        assert code == 0, self._log.read_text()
        return self.results()


def differences(expected: Sequence[StreamResult], found: Sequence[StreamResult]) -> Differences:
    """Tokens that `found` lacks, and that it has too many, over all streams."""
    lost = repeated = 0
    for before, after in zip(expected, found, strict=True):
        matcher = difflib.SequenceMatcher(None, before.tokens, after.tokens, autojunk=False)
        for kind, start, end, other_start, other_end in matcher.get_opcodes():
            if kind != "equal":
                lost += end - start
                repeated += other_end - other_start
    return Differences(lost, repeated)
