"""Lines of a batch with their tokens and lengths, as plans need them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from muxcluster.batch.store.entry import parse_entry
from muxcluster.batch.store.pending import Pending
from muxcluster.core.errors import EngineFailure, RequestError
from muxcluster.core.served import ServedModel
from muxcluster.http.batch_lines import body_of
from muxcluster.http.calls.call import Prompt
from muxcluster.http.calls.model_text import ModelTexts
from muxcluster.http.service import tokenise
from muxcluster.offline.choice import Unplanned
from muxcluster.offline.prefix.prompts import token_prompts
from muxcluster.sim.batch.setting import Setting
from muxcluster.text.schemas import EmbeddingBody, GenerationBody


@dataclass(frozen=True, slots=True)
class Served:
    """What is served now, and how requests are read."""

    models: tuple[ServedModel, ...]
    settings: Mapping[str, Sequence[Setting]]  # by model, the units that serve it, the most first
    lenient: bool  # unknown fields pass


@dataclass(frozen=True, slots=True, eq=False)
class AskedLine:
    """A line with its lengths."""

    line: int
    tokens: NDArray[np.int32]  # int32 [n], its first prompt
    output_tokens: int  # the most, or the expected number
    is_known: bool  # it gets exactly `output_tokens`


@dataclass(frozen=True, slots=True, eq=False)
class AskedLines:
    """Lines of a file, tokenised."""

    prompts: Mapping[int, Sequence[Prompt]]  # by line, of all whose request is right
    of_model: Mapping[str, Sequence[AskedLine]]  # of models that units serve
    unplanned: Sequence[int]  # lines without a unit, or whose request is wrong


def read_asked(
    file: Path, lines: Sequence[Pending], served: Served, output_tokens: Mapping[str, float]
) -> AskedLines:
    """Read and tokenise lines of `file`; of several prompts of a line the first counts.

    output_tokens: expected ones by model, of lines without a limit; for other models the
    configured mean. Raises OSError if the file cannot be read, LoadError for a model's files.
    """
    texts = _texts(served.models)
    prompts: dict[int, Sequence[Prompt]] = {}
    of_model: dict[str, list[AskedLine]] = defaultdict(list)
    unplanned: list[int] = []
    with file.open("rb") as opened:
        for line in lines:
            opened.seek(line.offset)
            try:
                body = body_of(parse_entry(opened.read(line.size)), lenient=served.lenient)
                prompts[line.line] = tokenise(body, texts.find(line.model)).prompts
            except (RequestError, EngineFailure):
                # it ends at once when it runs, with what is wrong, or has images
                unplanned.append(line.line)
                continue
            settings = served.settings.get(line.model)
            if settings:
                spec = settings[0].spec
                expected = output_tokens.get(line.model, spec.mean_output_tokens)
                first = prompts[line.line][0]
                of_model[line.model].append(
                    _asked(line.line, body, first, expected, spec.max_model_len)
                )
            else:
                unplanned.append(line.line)
    return AskedLines(prompts, of_model, unplanned)


def job_of(asked: Sequence[AskedLine], setting: Setting) -> Unplanned:
    """Return the lines of a model as a job for the unit of `setting`."""
    return Unplanned(
        token_prompts([each.tokens for each in asked]),
        np.array([each.output_tokens for each in asked], dtype=np.int64),
        setting.resources,
        setting.size_bytes,
        setting.spec.shape.block_tokens(setting.unit.spec.block_bytes),
        shared_prefix_tokens=setting.unit.spec.scheduler.shared_prefix_tokens,
    )


@lru_cache(maxsize=1)
def _texts(models: tuple[ServedModel, ...]) -> ModelTexts:
    return ModelTexts.load(models)


def _asked(
    line: int, body: GenerationBody | EmbeddingBody, prompt: Prompt, expected: float, most: int
) -> AskedLine:
    if isinstance(body, EmbeddingBody):
        return AskedLine(line, prompt.tokens, 1, is_known=True)
    is_limited = bool(body.max_tokens or getattr(body, "max_completion_tokens", None))
    output = prompt.max_tokens if is_limited else round(expected)
    return AskedLine(
        line,
        prompt.tokens,
        max(1, min(output, most - len(prompt.tokens))),
        is_limited and _runs_to_its_limit(body),
    )


def _runs_to_its_limit(body: GenerationBody) -> bool:
    """True if nothing ends the answer before its most tokens."""
    return bool(body.ignore_eos) and not (body.stop or body.stop_token_ids)
