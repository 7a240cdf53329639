"""A batch job of a cluster on hosts, by `openai`'s client on the operator's host."""

import json
import time
from collections.abc import Callable
from typing import Any

from tests.cluster_hosts.hosts import Host
from tests.cluster_hosts.served import FAMILIES, Served

END_TIMEOUT_S = 300.0
POLL_S = 1.0

_SUBMIT = """
import json
from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
names = {names}
lines = [
    json.dumps({{
        "custom_id": f"line-{{index}}",
        "method": "POST",
        "url": "/v1/completions",
        "body": {{"model": names[index % len(names)], "prompt": f"Line {{index}}: ",
                  "max_tokens": 64, "ignore_eos": True}},
    }})
    for index in range({number})
]
data = "\\n".join(lines).encode()
file = client.files.create(file=("lines.jsonl", data), purpose="batch")
batch = client.batches.create(
    input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
)
print(batch.id)
"""
_STATE = """
import json
from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
batch = client.batches.retrieve("{batch_id}")
counts = batch.request_counts
print(json.dumps({{
    "status": batch.status, "completed": counts.completed, "failed": counts.failed,
    "output": batch.output_file_id, "errors": str(batch.errors),
}}))
"""
_IDS = """
import json
from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
for line in client.files.content("{file_id}").text.splitlines():
    print(json.loads(line)["custom_id"])
"""


class BatchOnHosts:
    """A job of `number` lines over all models, submitted at the ingress of `host`."""

    def __init__(self, served: Served, host: Host, number: int) -> None:
        self._served = served
        self._url = served.url_of(host)
        self._id = self._ask(_SUBMIT, names=list(FAMILIES), number=number).strip()

    def state(self) -> dict[str, Any]:
        """What it is now: status, completed, failed, output, errors."""
        found: dict[str, Any] = json.loads(self._ask(_STATE, batch_id=self._id))
        return found

    def wait_until(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until `state` is as wanted."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while not is_wanted(state := self.state()):
            assert state["status"] in ("validating", "in_progress", "finalizing"), state
            assert time.monotonic() < deadline, state
            time.sleep(POLL_S)
        return state

    def line_ids(self) -> list[str]:
        """Of all results of an ended job, in their order."""
        file_id = self.wait_until(lambda state: state["output"] is not None)["output"]
        return self._ask(_IDS, file_id=file_id).split()

    def _ask(self, code: str, **values: Any) -> str:
        hosts = self._served.hosts
        asked = code.format(url=self._url, **values)
        return hosts.python(hosts.operator, asked).checked().stdout
