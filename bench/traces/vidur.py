"""Lengths of arXiv summarisation as collected by Vidur; they have no times."""

from pathlib import Path

import numpy as np

from muxcluster.core.errors import ConfigError
from muxcluster.workload.files.rows import csv_rows
from muxcluster.workload.lengths import Pairs

_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")


def read_vidur_lengths(path: Path) -> Pairs:
    """The pairs of `arxiv_summarization_lengths*.csv`. Raises ConfigError."""
    rows = [[row.whole(column, 1) for column in _COLUMNS] for row in csv_rows(path, _COLUMNS)]
    if not rows:
        raise ConfigError(path, "", "expected rows of lengths, found none")
    columns = np.array(rows, dtype=np.int64).T
    return Pairs(columns[0], columns[1])
