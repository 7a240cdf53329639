"""Dense re-batching (BATON) against transformers' static batch, on the CPU, in one run.

The model is a Llama of 9.7 million parameters with random weights, so that our paged engine can
run beside: 4 layers, hidden size 384, 6 heads and 3 KV heads of 64, intermediate size 1024,
vocabulary 4,000. Everything is greedy, fp32, on all cores that the process may use, and every query
has a number of output tokens that no end token cuts short.

`N_long`: 120 queries, long-short, short-long and short-short 1:1:2 (prompt-output) in random order;
long is 64 to 128 tokens and short 8 to 16 at batch 8, and twice that at batch 4, as in the paper
(which has lengths for a GPU). The others: 30 queries of 8 to 32 prompt tokens, with outputs at even
quantiles of the Azure code trace up to 128 tokens (median 13).

Methods, one after the other for each case, so that all see the same machine: `static` is `generate`
on one left-padded batch after the other; `P&D only` prefills prompts of similar lengths together
and then decodes them as one batch; `BATON` shapes queries into the running batch; `BATON with P&D`
prefills as many as the batch has rows at once beside it and embeds them as rows become free. All
return an answer with its last token. `scaled` (mixed lengths) has the static batch's peak memory as
limit in the place of a number of rows; `packed` has its linears packed for the processor, as our
engine runs models. The units are what serves the model, in processes of their own: on the dense
backend and on the paged one. Claims are BATON with P&D on the very model that `static` runs.

A static batch cannot lose more than `most_speedup` in steps: twice at batch 2, where every second
query would have to be of no length at all beside the other.
"""

import copy
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

sys.path.pop(0)  # the script's folder, whose http.py would hide Python's
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import yaml
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from bench.harness import ROOT, Bench, make_parser
from bench.rebatching.methods import Baton, decoupled, static
from bench.rebatching.picture import draw
from bench.rebatching.queries import Query, fewest_steps, mixed, short
from bench.rebatching.record import (
    BATON,
    BATON_PD,
    DECOUPLED,
    PACKED,
    SCALED,
    STATIC,
    UNITS,
    Done,
    Measured,
    claims_of,
    curves_of,
    rows_of,
)
from bench.rebatching.scaling import BatonScaling
from bench.rebatching.trace import Trace, watched
from muxcluster.core.padded import RowBytes
from muxcluster.demo.models import build_model
from muxcluster.engine.dense.model import DenseModel
from muxcluster.engine.load.packing_cpu import pack_linears

SHAPE = {
    "vocab_size": 4000,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
TINY = {**SHAPE, "hidden_size": 192, "intermediate_size": 256, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 3}
MIXED = {4: 2, 8: 1}  # Batch size to factor of the lengths

SHORT = (2, 4, 6, 8, 10)
UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Case:
    """Queries, `batch` of them at a time, run `rounds` times."""

    batch: int
    is_mixed: bool
    queries: list[Query]
    rounds: int


class UnitChild:
    """The child process that runs a unit."""

    def __init__(self, pipes: tuple[IO[str], IO[str]]) -> None:
        self._stdin, self._stdout = pipes

    def run(self, queries: Sequence[Query], batch: int) -> Done:
        """Raises RuntimeError where the child has died."""
        task = {
            "batch": batch,
            "prompts": [query.prompt for query in queries],
            "num_tokens": [query.num_tokens for query in queries],
        }
        print(json.dumps(task), file=self._stdin, flush=True)
        line = self._stdout.readline()
        if not line:
            raise RuntimeError("the unit ended before it answered")
        answer = json.loads(line)
        trace = Trace(len(queries))
        trace.tokens, trace.ended_s = answer["tokens"], answer["ended_s"]
        return Done(trace, answer["cpu_s"], None)


@contextmanager
def unit(path: Path, backend: str) -> Iterator[UnitChild]:
    """Serves the model in directory `path`."""
    config = path.parent / f"{backend}.yaml"
    model = {"name": "m", "path": str(path), "backend": backend, "max_seqs": 16}
    model |= {"max_model_len": 768}
    lengths = {"prompt_tokens": 64, "output_tokens": 64, "dtype": "float32"}
    fields = {"models": [{**model, **lengths}], "policy": {"kv_gb": 0.25}}
    config.write_text(yaml.safe_dump(fields), encoding="utf-8")
    command = (sys.executable, str(ROOT / "bench" / "rebatching" / "unit.py"), str(config))
    environment = {name: os.environ[name] for name in os.environ if name != "OMP_NUM_THREADS"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as child:
        assert child.stdin and child.stdout
        yield UnitChild((child.stdin, child.stdout))


class Runner:
    """Runs cases on the model in directory `path`."""

    def __init__(self, path: Path, units: Mapping[str, UnitChild]) -> None:
        plain: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        fast = copy.deepcopy(plain)
        pack_linears(fast)
        self._plain, self._fast = plain, fast
        self._model, self._packed = DenseModel.of(plain), DenseModel.of(fast)
        self._row_bytes: RowBytes = self._model.layout.row_bytes
        self._units = units

    def measured(self, case: Case) -> Measured:
        """Every method in turn, round after round."""
        found = Measured(case.batch, case.is_mixed)
        for _ in range(case.rounds):
            for method in (STATIC, DECOUPLED, BATON, BATON_PD, SCALED, PACKED, *self._units):
                if method != SCALED or case.is_mixed:
                    found.runs.setdefault(method, []).append(self._run(method, case, found))
        return found

    def _run(self, method: str, case: Case, found: Measured) -> Done:
        gc.collect()
        queries, batch = case.queries, case.batch
        if method in self._units:
            return self._units[method].run(queries, batch)
        if method == STATIC:
            row_bytes = self._row_bytes
            return self._noted(
                self._plain,
                queries,
                lambda trace: static(self._plain, row_bytes, queries, batch, trace),
            )
        if method == DECOUPLED:
            return self._noted(
                self._plain, queries, lambda trace: decoupled(self._model, queries, batch, trace)
            )
        limit, rows = UNLIMITED, batch
        if method == SCALED:
            limit, rows = found.runs[STATIC][0].trace.peak_bytes, len(queries)
        scaling = BatonScaling(self._row_bytes, limit, rows)
        model, raw = (self._packed, self._fast) if method == PACKED else (self._model, self._plain)
        baton = Baton(model, scaling, ahead=None if method == BATON else batch)
        done = self._noted(raw, queries, lambda trace: baton.run(queries, trace))
        return Done(done.trace, done.cpu_s, done.work, baton.num_saved)

    @staticmethod
    def _noted(model: Any, queries: Sequence[Query], run: Callable[[Trace], None]) -> Done:
        before_s = time.process_time()
        trace = Trace(len(queries))
        with watched(model) as work, torch.inference_mode():
            run(trace)
        return Done(trace, time.process_time() - before_s, work)


def cases(seed: int, data: Path, vocab_size: int, *, is_quick: bool) -> list[Case]:
    """The same seed gives the same queries. is_quick: a few queries, the largest batch of mixed
    lengths and two batches of short ones."""
    num_mixed, num_short, rounds = (12, 8, 1) if is_quick else (120, 30, 3)
    few = short(num_short, vocab_size, seed, data)
    mixes = [
        Case(batch, True, mixed(num_mixed, scale, vocab_size, seed), 1)
        for batch, scale in MIXED.items()
    ]
    shorts = [Case(batch, False, few, rounds) for batch in SHORT]
    return mixes[-1:] + shorts[:2] if is_quick else mixes + shorts


def measure(options: Any, data: Path) -> list[tuple[Case, Measured]]:
    """All cases; prints a line a case and method."""
    shape = TINY if options.quick else SHAPE
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    logging.set_verbosity_error()
    asked = cases(options.seed, data, shape["vocab_size"], is_quick=options.quick)
    warm_up = Case(2, True, [Query(query.prompt, 2) for query in asked[-1].queries[:4]], 1)
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-dense-") as folder, ExitStack() as stack:
        path = build_model(Path(folder) / "model", "llama", **shape)
        units = {name: stack.enter_context(unit(path, kind)) for name, kind in UNITS.items()}
        runner = Runner(path, units)
        runner.measured(warm_up)
        for case in asked:
            found.append((case, runner.measured(case)))
            for row in rows_of(found[-1][1]):
                print(json.dumps(row), flush=True)
    return found


def main() -> None:
    """Measure, publish, draw."""
    parser = make_parser(__doc__)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the mixed lengths there")
    bench = Bench(parser)
    found = measure(bench.options, bench.data())
    samples = {
        f"seconds {each.name} {method}": [run.seconds for run in runs]
        for _, each in found
        for method, runs in each.runs.items()
    }
    curves = {each.name: curves_of(each) for _, each in found if each.is_mixed}
    if bench.options.plot is not None:
        draw(curves, bench.options.plot)
    most = {each.name: round(fewest_steps(case.queries, case.batch), 3) for case, each in found}
    bench.publish(
        list(claims_of([each for _, each in found])),
        samples,
        model=TINY if bench.options.quick else SHAPE,
        threads=torch.get_num_threads(),
        most_speedup=most,
        rows=[row for _, each in found for row in rows_of(each)],
        curves=curves,
    )


if __name__ == "__main__":
    main()
