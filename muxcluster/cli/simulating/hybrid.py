"""`--hybrid`: a saturating batch load beside the configured requests, which are interactive."""

from dataclasses import dataclass
from typing import Annotated

import typer

from muxcluster.core.errors import ConfigError
from muxcluster.placement.problem import Demand, Problem
from muxcluster.scheduling.packing import PACKINGS
from muxcluster.sim.demand.load_options import LoadOptions
from muxcluster.sim.demand.loads import log_normal
from muxcluster.sim.demand.waves import Waves
from muxcluster.workload.lengths import Independent

# Default systems of `--hybrid`.
HYBRID_SYSTEMS = ",".join(f"muxserve:packing={name}" for name in PACKINGS)
_PROMPT_TOKENS, _OUTPUT_TOKENS, _WAVE = 768, 80, 256

HybridOption = Annotated[
    bool,
    typer.Option(
        "--hybrid",
        help="Take the requests as interactive and add batch requests that take all that is left: "
        "so many at once to each model of each unit, and as many again when all have ended. "
        "Prints both classes apart. Example: --hybrid --batch-output-tokens 300",
    ),
]
PromptOption = Annotated[
    int | None,
    typer.Option(
        "--batch-prompt-tokens",
        min=1,
        help=f"Mean of the batch requests, with --hybrid; by default {_PROMPT_TOKENS}.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    int | None,
    typer.Option(
        "--batch-output-tokens",
        min=1,
        help=f"Mean of the batch requests, with --hybrid; by default {_OUTPUT_TOKENS}.",
        show_default=False,
    ),
]
WaveOption = Annotated[
    int | None,
    typer.Option(
        "--batch-requests",
        min=1,
        max=100_000,
        help=f"Batch requests at once, with --hybrid; by default {_WAVE}.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What the command line asks for. Mean tokens of a request, and how many come at once."""

    prompt_tokens: int
    output_tokens: int
    num_requests: int


def batch_options(
    is_hybrid: bool, prompt_tokens: int | None, output_tokens: int | None, num_requests: int | None
) -> BatchOptions | None:
    """Return the options; None without --hybrid. Raises typer.BadParameter for its numbers without
    it."""
    if is_hybrid:
        return BatchOptions(
            prompt_tokens or _PROMPT_TOKENS, output_tokens or _OUTPUT_TOKENS, num_requests or _WAVE
        )
    given = {
        "--batch-prompt-tokens": prompt_tokens,
        "--batch-output-tokens": output_tokens,
        "--batch-requests": num_requests,
    }
    for name, value in given.items():
        if value is not None:
            raise typer.BadParameter(f"{name} needs --hybrid")
    return None


def waves_of(batch: BatchOptions, options: LoadOptions, problem: Problem) -> tuple[Waves, ...]:
    """Return the batch load of every model. Raises ConfigError if it is too long for one."""
    return tuple(_waves(batch, options, demand) for demand in problem.demands)


def _waves(batch: BatchOptions, options: LoadOptions, demand: Demand) -> Waves:
    most = demand.max_model_len - 1
    if batch.prompt_tokens > most:
        message = f"{demand.name!r} takes at most {most} tokens, found {batch.prompt_tokens}"
        raise ConfigError("--batch-prompt-tokens", "", message)
    lengths = Independent(
        log_normal(batch.prompt_tokens, options.sigma, most),
        log_normal(batch.output_tokens, options.sigma, most),
    )
    return Waves(demand.name, batch.num_requests, lengths, options.duration_s, options.seed)
