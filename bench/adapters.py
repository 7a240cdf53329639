"""A base with LoRA adapters: output tokens/s with 32 of them in one batch over those with none.

The model, the lengths of requests and the way the unit is driven are those of bench/serving.py: a
Llama of 56.4 million parameters with random weights in fp32, prompts of 32 to 128 random tokens, 64
output tokens, a unit with its worker processes and no HTTP. Its adapters, of rank 8, change all
linears of all layers. As many requests as there are adapters are open at a time: all for the base,
then the same prompts, each for an adapter of its own, in turn, in every round with new prompts.
What is said is the median over the rounds of the ratio inside a round. Of the last round every
token of every adapter is compared with Hugging Face's model with the adapter's numbers merged into
its weights, after the tokens before it.

Claims: tokens/s with adapters over without; tokens that differ from the merged models'.
"""

import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from bench.harness import Bench, Claim, make_parser
from bench.online.lora import MergedModels, write_adapters
from bench.online.unit import ClosedLoop, warm_up
from bench.processes import settle
from bench.serving import KV_GB, NAME, PROMPT_TOKENS, SHAPE, make_model
from muxcluster.cli.batch_local.units import local_specs
from muxcluster.config.load import load_config
from muxcluster.engine.unit.unit import Unit

RANK = 8
_GOAL = 0.75


@dataclass(frozen=True, slots=True)
class Round:
    """One round: tokens/s of both sides, and what was asked and answered."""

    without: float
    with_adapters: float
    prompts: Sequence[Sequence[int]]
    # of each prompt, for its adapter
    tokens: Sequence[list[int]]

    @property
    def ratio(self) -> float:
        return self.with_adapters / self.without


class Driver:
    """The unit of a configuration, asked with and without its adapters."""

    def __init__(self, config: Path) -> None:
        (spec,) = local_specs(load_config(config))
        self.adapters = [each.name for each in spec.models[0].adapters]
        self._num_loops = 0
        self._now: ClosedLoop | None = None
        self._unit = Unit(spec, self._hear)

    def __enter__(self) -> "Driver":
        self._unit.start()
        settle()
        return self

    def __exit__(self, *_: object) -> None:
        self._unit.close()

    def _hear(self, deltas: Any) -> None:
        if self._now is not None:
            self._now.hear(self._unit, deltas)

    def run(
        self, prompts: list[list[int]], num_tokens: int, adapters: Sequence[str]
    ) -> tuple[float, list[list[int]]]:
        """Output tokens/s and tokens; adapters: one a prompt, or none."""
        case = {
            "model": NAME,
            "prompts": prompts,
            "num_tokens": num_tokens,
            "concurrency": len(self.adapters),
            "adapters": adapters,
        }
        seconds, loop = self._timed(case)
        return sum(map(len, loop.tokens)) / seconds, loop.tokens

    def warm(self, prompts: list[list[int]]) -> None:
        """A few tokens of both kinds, of other prompts."""
        for adapters in ((), self.adapters):
            case = {"model": NAME, "prompts": prompts, "concurrency": len(self.adapters)}
            self._timed(warm_up({**case, "adapters": adapters}))

    def _timed(self, case: dict[str, Any]) -> tuple[float, ClosedLoop]:
        self._num_loops += 1
        loop = self._now = ClosedLoop(f"{self._num_loops}", case)
        return loop.run(self._unit), loop


def measure(driver: Driver, prompts: list[list[int]], num_tokens: int, number: int) -> Round:
    """Both sides on the same prompts; every other round the adapters go first."""
    rates, tokens = {}, {}
    for is_adapted in (False, True) if number % 2 == 0 else (True, False):
        adapters = driver.adapters if is_adapted else ()
        rates[is_adapted], tokens[is_adapted] = driver.run(prompts, num_tokens, adapters)
    return Round(rates[False], rates[True], prompts, tokens[True])


def write_config(path: Path, adapters: list[dict[str, str]], num_tokens: int) -> Path:
    """The configuration of the model in `path` with its adapters."""
    model = {
        "name": NAME,
        "path": str(path),
        "max_seqs": 64,
        "max_model_len": 256,
        "dtype": "float32",
        "prompt_tokens": 80,
        "output_tokens": num_tokens,
        "adapters": adapters,
    }
    config = path.parent / "adapters.yaml"
    config.write_text(yaml.safe_dump({"models": [model], "policy": {"kv_gb": KV_GB}}))
    return config


def random_prompts(rng: random.Random, number: int) -> list[list[int]]:
    return [
        [rng.randrange(3, SHAPE["vocab_size"]) for _ in range(rng.randint(*PROMPT_TOKENS))]
        for _ in range(number)
    ]


def main() -> None:
    """Measure round by round, compare the last one's tokens, publish."""
    parser = make_parser(__doc__)
    parser.add_argument("--adapters", type=int, metavar="N", help="default: 32, quick: 4")
    parser.add_argument("--rounds", type=int, metavar="N", help="default: 7, quick: 1")
    bench = Bench(parser)
    options = bench.options
    number = options.adapters or (4 if options.quick else 32)
    num_tokens = 16 if options.quick else 64
    rng = random.Random(options.seed)
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="bench-adapters-") as folder:
        path = make_model(Path(folder))
        adapters = write_adapters(path, Path(folder), number, RANK)
        with Driver(write_config(path, adapters, num_tokens)) as driver:
            driver.warm(random_prompts(rng, number))
            for each in range(options.rounds or (1 if options.quick else 7)):
                prompts = random_prompts(rng, number)
                rounds.append(measure(driver, prompts, num_tokens, each))
                row = {"without": rounds[-1].without, "with": rounds[-1].with_adapters}
                print(json.dumps(row), flush=True)
        last, merged = rounds[-1], MergedModels(path)
        different = [
            merged.num_different(Path(adapter["path"]), prompt, tokens)
            for adapter, prompt, tokens in zip(adapters, last.prompts, last.tokens, strict=True)
        ]
        of_base = [
            merged.num_different(None, prompt, tokens)
            for prompt, tokens in zip(last.prompts, last.tokens, strict=True)
        ]
    ratio = median(each.ratio for each in rounds)
    claims = [
        Claim(f"throughput_with_{number}_adapters", round(ratio, 3), "x", _GOAL),
        Claim("different_tokens", sum(different), "tokens", 0),
    ]
    samples = {
        "tokens_per_s without": [round(each.without, 1) for each in rounds],
        "tokens_per_s with": [round(each.with_adapters, 1) for each in rounds],
    }
    bench.publish(
        claims,
        samples,
        model=SHAPE,
        rank=RANK,
        output_tokens=num_tokens,
        compared_tokens=number * num_tokens,
        different_from_base=sum(of_base),
    )


if __name__ == "__main__":
    main()
