"""Where the time of one request went: as lines, and as a file for Perfetto or chrome://tracing."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muxcluster.cli.views.words import bar_text, percent_text, seconds_text
from muxcluster.cli.watching.rows import plain

Choice = Mapping[str, Any]
# parts of a request's time, as `usage.timing` and the request log have them, in the order in which
# most requests pass them
PARTS = (
    ("queue_s", "waiting for its first launch"),
    ("waking_s", "waiting for the model's weights"),
    ("prefill_s", "prefill, to the first token"),
    ("decode_s", "decode"),
    ("mask_wait_s", "waiting for what its constraint allows"),
    ("preempted_s", "waiting after a preemption"),
    ("restore_s", "computing again what was lost"),
    ("recovery_s", "waiting for another unit"),
    ("framework_s", "HTTP, tokenising and the rest"),
)
_US = 1e6


def choice_lines(choice: Choice) -> Iterator[str]:
    """Return lines about one choice of a call."""
    targets = choice["targets"] or {}
    arrived = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(choice["arrived_s"]))
    yield plain(
        f"{choice['id']} choice {choice['choice']} of {choice['model']} ({choice['class']}): "
        f"{choice['end']}"
    )
    if choice["error"]:
        yield plain(f"  {choice['error']}")
    yield (
        f"  arrived {arrived}; {choice['prompt_tokens']} prompt tokens, "
        f"{choice['cached_tokens']} of them cached; {choice['output_tokens']} output tokens; "
        f"{choice['preemptions']} preemptions, {choice['recoveries']} recoveries"
    )
    ttft = _against(choice["ttft_s"], targets.get("ttft_s"))
    tpot = _against(choice["tpot_s"], targets.get("tpot_s"))
    yield f"  TTFT {ttft}, TPOT {tpot}, {seconds_text(choice['total_s'])} in all"
    for name, what in PARTS:
        seconds = choice[name]
        if abs(seconds) >= 5e-5:
            share = seconds / choice["total_s"]
            yield f"  {bar_text(share)} {percent_text(share):>5} {seconds_text(seconds):>9} {what}"


def _against(seconds: float | None, target: float | None) -> str:
    if seconds is None:
        return "none"
    text = seconds_text(seconds)
    return text if target is None else f"{text} of {seconds_text(target)}"


def chrome_trace(choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the choices in the Trace Event Format, a track each.

    How long each part took is known, not when: parts are laid end to end in the order of `PARTS`.
    Times are microseconds of Unix time.
    """
    events: list[dict[str, Any]] = []
    for track, choice in enumerate(choices, 1):
        place = {"pid": 1, "tid": track}
        name = f"{choice['id']} choice {choice['choice']}"
        start_us = choice["arrived_s"] * _US
        events.append({"ph": "M", "name": "thread_name", **place, "args": {"name": name}})
        span = {"ph": "X", "ts": start_us, "dur": choice["total_s"] * _US, **place}
        events.append({"name": f"{choice['model']}: {choice['end']}", **span, "args": {**choice}})
        at_us = start_us
        for part, what in PARTS:
            length_us = max(0.0, choice[part]) * _US
            if length_us > 0.0:
                events.append({"ph": "X", "name": what, "ts": at_us, "dur": length_us, **place})
            at_us += length_us
        if choice["ttft_s"] is not None:
            first_us = start_us + choice["ttft_s"] * _US
            events.append({"ph": "i", "name": "first token", "ts": first_us, "s": "t", **place})
    return {"displayTimeUnit": "ms", "traceEvents": events}
