"""`muxcluster bench serve`: load on a running OpenAI server, reported as vLLM's own bench does."""

import asyncio
import json
import math
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from muxcluster.cli.keys import key_option
from muxcluster.loadgen.exchange import Target, request_bytes
from muxcluster.loadgen.figures import figures
from muxcluster.loadgen.load import Outcome, Pace, run_load
from muxcluster.loadgen.prompts import Prompts, tokens_per_word
from muxcluster.loadgen.report import report

GOODPUT_METRICS = ("ttft", "tpot", "e2el")


class What(StrEnum):
    """What is measured."""

    SERVE = "serve"


class Backend(StrEnum):
    """Route that is asked, by vLLM's names."""

    OPENAI = "openai"
    CHAT = "openai-chat"


def bench(  # noqa: PLR0913 - each parameter is an option of the command line
    what: Annotated[What, typer.Argument(help="serve: a running server, over HTTP.")],
    model: Annotated[str, typer.Option(help="Name of the model to ask.")],
    more_limits: Annotated[
        list[str] | None, typer.Argument(metavar="", help="Further limits of --goodput.")
    ] = None,
    url: Annotated[
        str, typer.Option("--url", "--base-url", envvar="MUXCLUSTER_URL", help="The server.")
    ] = "http://127.0.0.1:8000",
    backend: Annotated[Backend, typer.Option(help="Completions or chat.")] = Backend.OPENAI,
    num_prompts: Annotated[int, typer.Option(min=1, help="Requests in all.")] = 100,
    request_rate: Annotated[
        float, typer.Option(min=0.001, help="Mean arrivals per second; inf: all at once.")
    ] = math.inf,
    burstiness: Annotated[
        float, typer.Option(min=0.01, max=1e6, help="1 is a Poisson process, less is burstier.")
    ] = 1.0,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Most requests open at a time.")
    ] = None,
    input_len: Annotated[
        int, typer.Option("--input-len", "--random-input-len", min=1, help="Tokens, about.")
    ] = 128,
    output_len: Annotated[
        int, typer.Option("--output-len", "--random-output-len", min=1, help="Tokens.")
    ] = 128,
    ignore_eos: Annotated[bool, typer.Option(help="Let answers run to their full length.")] = True,
    goodput: Annotated[
        list[str] | None,
        typer.Option(help="Limits in ms that a good request keeps: ttft:200 tpot:50 e2el:9000."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="MUXCLUSTER_API_KEY", callback=key_option, help="The server's key."),
    ] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Longest a request may take.")] = 600.0,
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON with vLLM's keys.")] = False,
) -> None:
    """Send random prompts to a running server and print what `vllm bench serve` prints.

    Exit code 1 where any request failed.
    Example: muxcluster bench serve --model chat-7b --request-rate 4 --goodput ttft:200 tpot:50
    """
    limits = goodput_limits([*(goodput or ()), *(more_limits or ())])
    prompts = Prompts(
        model, input_len, output_len, backend is Backend.CHAT, ignore_eos=ignore_eos, seed=seed
    )
    pace = Pace(request_rate, burstiness, max_concurrency, timeout_s, seed)
    outcome = asyncio.run(_load(url, prompts, num_prompts, pace, api_key))
    result = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": backend.value,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": num_prompts,
        "request_rate": "inf" if math.isinf(request_rate) else request_rate,
        "burstiness": burstiness,
        "max_concurrency": max_concurrency,
        **figures(outcome, limits),
    }
    typer.echo(json.dumps(result) if as_json else report(result))
    failed = [answer.error for answer in outcome.answers if not answer.is_complete]
    if failed:
        typer.echo(f"muxcluster: {len(failed)} requests failed, the first: {failed[0]}", err=True)
        raise typer.Exit(1)


async def _load(
    url: str, prompts: Prompts, num_prompts: int, pace: Pace, key: str | None
) -> Outcome:
    target = Target.of(url)
    per_word = await asyncio.to_thread(tokens_per_word, url, prompts.model, key)
    bodies = prompts.bodies(num_prompts, per_word)
    requests = [request_bytes(target, prompts.path, body, key) for body in bodies]
    return await run_load(target, requests, pace)


def goodput_limits(texts: Sequence[str]) -> dict[str, float]:
    """Parse "ttft:200" and the like to milliseconds by metric. Raises BadParameter otherwise."""
    limits = {}
    for text in texts:
        name, _, number = text.partition(":")
        try:
            limit_ms = float(number)
        except ValueError:
            limit_ms = -1.0
        if name not in GOODPUT_METRICS or not limit_ms >= 0:
            known = ", ".join(GOODPUT_METRICS)
            raise typer.BadParameter(f"{text!r} is not METRIC:MILLISECONDS with one of {known}")
        limits[name] = limit_ms
    return limits
