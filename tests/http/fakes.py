"""A scripted backend, a tiny real tokenizer and a real server for the HTTP tests."""

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from muxcluster.core.events import Finished, FinishReason, TokenDelta
from muxcluster.core.job import TokenLogprobs
from muxcluster.core.request import Request
from muxcluster.core.residency import WeightOrder
from muxcluster.core.served import JobRecord, ModelStats, ServedModel, UnitStats

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Many models share one engine, and every request ends exactly once.",
    "Prefill comes first; decode goes on. Stop here, or say hello world again!",
]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
EOS = "</s>"


def make_tokenizer(directory: Path) -> Path:
    """Byte-level BPE of about 300 tokens with a chat template; `</s>` is the end token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": EOS}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def served_model(directory: Path, name: str = "tiny", max_model_len: int = 256) -> ServedModel:
    """The model of `make_tokenizer`."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    eos = (tokenizer.token_to_id(EOS),)
    return ServedModel(name, str(directory), max_model_len, tokenizer.get_vocab_size(), eos)


def logprob_of(token: int) -> float:
    """The fake model's log-probability of a token."""
    return -0.01 * (token % 90 + 1)


def entry(token: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities as an engine reports them: the token is the likeliest of its tops."""
    tops = tuple(range(token, token + num_top))
    return TokenLogprobs(token, logprob_of(token), 1, tops, tuple(logprob_of(t) for t in tops))


class FakeBackend:
    """Plays `script(request)` token by token with the engine's stopping rules.

    width: tokens per delta. delay_s: pause before each delta. most_deltas: so many of a request
    come, and no more until it is raised. error: raised after `error_after` deltas. requests,
    aborted, ended: what was asked and how it went. reports: of models, by unit id. orders: those
    given, each of which `on_order` follows.
    """

    def __init__(self, served: Sequence[ServedModel]) -> None:
        self.served = list(served)
        self.script: Callable[[Request], Sequence[int]] = lambda request: []
        self.width = 1
        self.delay_s = 0.0
        self.most_deltas = math.inf
        self.error: Exception | None = None
        self.error_after = 0
        self.first: TokenDelta | None = None
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.ended: list[str] = []
        self.is_healthy = True
        self.is_ready = True
        self.is_draining = False
        self.reports: dict[str, dict[str, ModelStats]] = {}
        self.orders: list[tuple[str, WeightOrder, str | None]] = []
        self.on_order: Callable[[str, WeightOrder], None] = lambda model, order: None

    def models(self) -> Sequence[ServedModel]:
        return self.served

    def ready(self) -> bool:
        return self.is_ready

    def draining(self) -> bool:
        return self.is_draining

    def healthy(self) -> bool:
        return self.is_healthy

    def stats(self) -> Sequence[UnitStats]:
        model = ModelStats("tiny", num_running=2, num_waiting=1, quota_blocks=50, used_blocks=20)
        jobs = (JobRecord(1, "tiny", "prefill", 0, 0.7, 1.0, 1.5, 2, 64),)
        return [UnitStats("unit-0", 3.0, 100, 80, (model,), jobs)]

    def model_stats(self, model: str) -> Mapping[str, ModelStats]:
        return self.reports.get(model, {})

    async def request_move(
        self, model: str, order: WeightOrder, unit_id: str | None = None
    ) -> None:
        self.orders.append((model, order, unit_id))
        self.on_order(model, order)

    async def generate(self, request: Request) -> AsyncIterator[TokenDelta]:
        self.requests.append(request)
        try:
            if self.first is not None:
                yield self.first
                if self.first.rejected is not None:
                    self.ended.append(request.request_id)
                    return
            for i, delta in enumerate(self._deltas(request)):
                if self.error is not None and i == self.error_after:
                    self.ended.append(request.request_id)
                    raise self.error
                while i >= self.most_deltas:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(self.delay_s)
                if delta.finished is not None:
                    self.ended.append(request.request_id)
                yield delta
        finally:
            if request.request_id not in self.ended:
                self.aborted.append(request.request_id)

    def _deltas(self, request: Request) -> Iterator[TokenDelta]:
        sampling = request.sampling
        eos = () if sampling.ignore_eos else self.served[0].eos_token_ids
        tokens, stop = [], None
        for token in self.script(request):
            tokens.append(token)
            if token in (*eos, *sampling.stop_token_ids):
                stop = token
                break
            if len(tokens) == sampling.max_tokens:
                break
        reason = FinishReason.LENGTH if stop is None else FinishReason.STOP
        finished = Finished(request.request_id, reason, stop, num_cached_tokens=3, queue_s=0.01)
        if sampling.prompt_logprobs is not None:
            prompt = request.prompt_tokens.tolist()[1:]
            num_top = sampling.prompt_logprobs
            yield TokenDelta(prompt_logprobs=tuple(entry(t, num_top) for t in prompt))
        for start in range(0, len(tokens), self.width):
            part = tuple(tokens[start : start + self.width])
            wanted = sampling.logprobs
            is_last = start + self.width >= len(tokens)
            yield TokenDelta(
                part,
                () if wanted is None else tuple(entry(t, wanted) for t in part),
                finished=finished if is_last else None,
            )
        if not tokens:
            yield TokenDelta(finished=finished)


@contextmanager
def running_server(app: ASGIApp, port: int = 0) -> Iterator[str]:
    """A real uvicorn on this host, on a free port unless one is given; yields its address."""
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    pause = threading.Event()
    while not server.started and thread.is_alive():
        pause.wait(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(600)


def wait_until(is_true: Callable[[], bool]) -> bool:
    """Waits for another thread; False after ten minutes."""
    pause = threading.Event()
    for _ in range(60_000):
        if is_true():
            return True
        pause.wait(0.01)
    return is_true()
