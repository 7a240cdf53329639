"""Writes the Lark rules of an output of several messages, for one model's special tokens."""

from collections.abc import Mapping
from typing import Any

from muxcluster.constraints.tags import Literals, json_rule


def message_rules(value: Mapping[str, Any], specials: Mapping[str, int]) -> str:
    """Return Lark rules for what `grammars.messages` wrote.

    specials: ids of the model's special tokens by their text. Free text holds none of them, so that
    a message ends where its mark is.
    """
    write = Literals(specials)
    between = write(value["between"])
    first = f"FREE {between} " if value["begins_within"] else ""
    rules = [f"start: {first}earlier* last", "FREE: /(?s:.*)/"]
    heads = " | ".join(map(write, value["earlier"]))
    rules.append(f"earlier: ({heads}) FREE {between}")
    lasts = []
    for at, (headers, schema) in enumerate(value["last"]):
        heads = " | ".join(map(write, headers))
        inside = "FREE" if schema is None else f"inside{at}"
        lasts.append(f"({heads}) {inside}")
        if schema is not None:
            rules.append(json_rule(f"inside{at}", schema))
    return "\n".join((*rules, f"last: {' | '.join(lasts)}", ""))
