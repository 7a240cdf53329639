"""Download of a batch's result files."""

from muxcluster.cli.batch_local.files import ResultFiles
from muxcluster.cli.batch_server.client import ApiObject, BatchServer
from muxcluster.core.errors import StorageFailed


def collect(server: BatchServer, batch: ApiObject, files: ResultFiles) -> list[str]:
    """Download the results of a batch that is over; return a line about each file.

    Without an answer the output is empty. Raises StorageFailed, Unavailable.
    """
    counts = batch["request_counts"]
    told = []
    if batch["error_file_id"] is not None:
        server.download(batch["error_file_id"], files.errors)
        told.append(f"{counts['failed']} lines without one in {files.errors}")
    if batch["output_file_id"] is not None:
        server.download(batch["output_file_id"], files.output)
    else:
        try:
            files.output.touch()
        except OSError as error:
            raise StorageFailed(files.output, error.strerror or str(error)) from error
    return [f"{counts['completed']} answers in {files.output}", *told]
