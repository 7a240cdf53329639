"""`muxcluster batch wait`: until a server's batch is over."""

from rich.console import Console

from muxcluster.cli.batch.options import LOCAL, BatchId, Json, Key, Output, Url
from muxcluster.cli.batch_local.files import ResultFiles
from muxcluster.cli.batch_server.client import BatchServer
from muxcluster.cli.batch_server.ending import report
from muxcluster.cli.batch_server.waiting import wait_for


def wait(
    batch_id: BatchId,
    output: Output = None,
    url: Url = LOCAL,
    api_key: Key = None,
    as_json: Json = False,
) -> None:
    """Wait for the end of a server's batch, with its progress on the terminal.

    The progress comes as the server tells it, where it sends events. Interrupted, the batch goes
    on. Exit code 1 where the batch did not complete.

    Example: muxcluster batch wait batch_0f3a -o answers.jsonl
    """
    files = None if output is None else ResultFiles(output)
    if files is not None:
        files.check_free()
    server = BatchServer(url, api_key)
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    report(server, wait_for(server, batch_id, console), files, as_json=as_json)
