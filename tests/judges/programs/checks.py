"""Runs the checks of a judge's program and prints a line of JSON for each."""

import asyncio
import inspect
import json
import os
import traceback

URL = os.environ["JUDGE_URL"]
MODEL = os.environ["JUDGE_MODEL"]
EMBEDDER = os.environ["JUDGE_EMBEDDER"]
TOKENIZER = os.environ["JUDGE_TOKENIZER"]
# a model that thinks would think first, and this one has nothing to think
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def run(*checks):
    """Run functions one after the other; each says by an error that it failed."""
    for check in checks:
        line = {"check": check.__name__.replace("_", " ")}
        try:
            found = check()
            if inspect.isawaitable(found):
                asyncio.run(_waited(found))
        except Exception as error:
            traceback.print_exc()
            line["error"] = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(line), flush=True)


async def _waited(found):
    return await found
