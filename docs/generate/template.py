"""Fills templates: `{{what …}}` becomes a figure, a table or a run of a committed record.

{{RECORD: PATH | FORMAT}}   a figure, as `records.value_at` finds it
{{claims RECORD}}           the claims of a record in words
{{chosen RECORD}}           those of them that have words
{{missed RECORD}}           which of them were missed, and why
{{run RECORD}}              with which command, where and when it was made
{{table NAME}}              a table, or a sentence, of `results.tables.TABLES`
"""

import re

from docs.generate.claims import claims_table, missed_list
from docs.generate.records import FORMATS, record, run_of, value_at
from docs.generate.results.said import SAID
from docs.generate.results.tables import TABLES

FIELD = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)


def filled(template: str) -> str:
    """Return the text with every field filled. Raises LookupError for an unknown one."""
    return FIELD.sub(lambda match: _field(" ".join(match[1].split())), template)


def _field(text: str) -> str:
    what, _, rest = text.partition(" ")
    if what == "claims":
        return claims_table(rest, SAID.get(rest, ()))
    if what == "chosen":
        return claims_table(rest, SAID[rest], has_others=False)
    if what == "missed":
        return missed_list(rest, SAID.get(rest, ()))
    if what == "run":
        return run_of(rest) if record(rest) is not None else ""
    if what == "table":
        return TABLES[rest]()
    name, _, path = text.partition(":")
    place, _, form = path.partition("|")
    return FORMATS[form.strip() or "number"](value_at(place.strip(), name.strip()))
