"""How long real models answer the same 805 prompts (AlpacaEval): counts of characters only."""

from pathlib import Path

import numpy as np

from muxcluster.core.errors import ConfigError
from muxcluster.workload.files.rows import Row, csv_rows
from muxcluster.workload.lengths import Pairs

CHARS_PER_TOKEN = 4.0  # Roughly, for English text
_SUFFIX = ":chars"


def read_alpaca_lengths(path: Path, model: str, chars_per_token: float = CHARS_PER_TOKEN) -> Pairs:
    """Pairs of one model (a column `MODEL:chars`), characters divided; a missing answer is skipped.

    Raises ConfigError, listing the models where this one is not there.
    """
    column, pairs = model + _SUFFIX, []
    for row in csv_rows(path, ("prompt_chars",)):
        if column not in row.fields:
            names = [name.removesuffix(_SUFFIX) for name in row.fields if name.endswith(_SUFFIX)]
            row.fail(column, f"expected one of {', '.join(names)}")
        if row.fields[column] != "":
            pairs.append([_tokens(row, name, chars_per_token) for name in ("prompt_chars", column)])
    if not pairs:
        raise ConfigError(path, column, "expected answers, found none")
    columns = np.array(pairs, dtype=np.int64).T
    return Pairs(columns[0], columns[1])


def _tokens(row: Row, column: str, chars_per_token: float) -> int:
    return max(1, round(row.whole(column, 0) / chars_per_token))
