"""docs/reference/support.md: which model runs on what, each entry with the test that shows it.

The families are read from the tests' own parametrisation, so that an entry cannot say more than
what is tested.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docs.generate.markdown import page, table

ROOT = Path(__file__).resolve().parent.parent.parent.parent
_INTRODUCTION = """\
# Support matrix

Each entry is a test, and the families are those that it runs with. All of them compare with
Hugging Face's `generate` token for token, or with what the same unit says on partition `none`.
"CPU" is the engine itself; "stand-in" means that the code of the GPU path runs on the CPU against
a fake device, MPS daemon or graph. **No entry was run on a GPU.**

*paged* is our attention over the shared KV pool, *dense* the model's own attention and cache in
padded batches ([any model](../guides/any-model.md)). A width above 1 divides a model over several
GPUs (tensor parallelism). Partitions are in [SM shares](../concepts/sm-shares.md)."""
_REFUSED = """\
## What is refused

With one line that names the reason, when the plan is read or the unit starts:"""
_REFUSALS = (
    (
        "a width above 1 for query heads that are no multiple of it, models with states, dense "
        "models, norms over all heads (OLMo 2), model types that were not tested",
        "the planner keeps such a model on one GPU and `place` says why",
    ),
    ("`partition: mps` with a dense model, or with one with states", "`green` or `none`"),
    ("`partition: mps` over several GPUs", "`auto`, `green` or `none`"),
    ("Nemotron-H, Zamba, RWKV, RecurrentGemma, LFM2", "not yet"),
    (
        "latent attention: of types other than `deepseek_v2`, `deepseek_v3`, `glm4_moe_lite`, "
        "`kimi_k2`, `minicpm3` and `youtu`; with quantised weights, or with `kv_dtype`",
        "a checkpoint in 16 bits",
    ),
    (
        "weights by bitsandbytes, of quantised experts but gpt-oss in MXFP4; GGUF files",
        "the same model in 16 bits, or in [another method](../guides/quantised.md), as safetensors",
    ),
    (
        "`kv_dtype` of a dense model, or of one with states",
        "[`auto`](../guides/quantised.md#keys-and-values), the default",
    ),
    (
        "images in messages, but of `qwen2_vl` and `qwen2_5_vl`; audio and video",
        "400 `unsupported_parameter` ([images](../guides/images.md)); not yet",
    ),
    (
        "LoRA adapters of dense models, of models with states, of embeddings, of experts; DoRA and "
        "other kinds",
        "[what is accepted](../guides/adapters.md#what-is-accepted)",
    ),
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A test, and what it runs on."""

    test: str  # path::function
    families: str  # constant of the test's module, or parameter of the function
    width: int
    backend: str
    partition: str
    where: str
    shows: str


EVIDENCE = (
    Evidence(
        "tests/engine/unit/test_greedy_equality.py::test_six_families_with_preemption_and_prefix_hits",
        "FAMILIES", 1, "paged", "threads", "CPU",
        "greedy output, with preemption and prefix hits, in every lane",
    ),
    Evidence(
        "tests/engine/load/test_families.py::test_variants",
        "VARIANTS", 1, "paged", "none", "CPU",
        "variants: biases, tied weights, sliding windows, soft-caps, scaled rotary",
    ),
    Evidence(
        "tests/engine/unit/test_gpt_oss.py::test_preempted_killed_and_with_cached_prefixes",
        "FAMILIES", 1, "paged", "threads", "CPU",
        "greedy output with attention sinks, preempted and killed, beside another model",
    ),
    Evidence(
        "tests/engine/unit/test_latents.py::test_preempted_killed_and_with_cached_prefixes",
        "FAMILIES", 1, "paged", "threads", "CPU",
        "latents in the pool, with preemption, prefix hits and killed processes",
    ),
    Evidence(
        "tests/engine/forward/test_latents.py::test_ragged_chunked_mixed_batches",
        "FAMILIES", 1, "paged", "none", "CPU",
        "latents in the pool, of prompts in chunks beside decodes",
    ),
    Evidence(
        "tests/engine/unit/test_latents.py::test_divided_over_ranks",
        "FAMILIES", 2, "paged", "none", "CPU (gloo)",
        "latents in the pool of each of two ranks",
    ),
    Evidence(
        "tests/engine/vision/test_units.py::test_chunks_that_end_inside_images",
        "FAMILIES", 1, "paged", "none", "CPU",
        "greedy output with images, in chunks beside decodes",
    ),
    Evidence(
        "tests/engine/vision/test_units.py::test_killed_and_resumed_beside_a_llama",
        "KILLED", 1, "paged", "threads", "CPU",
        "greedy output with images, in chunks, with killed processes, beside another model",
    ),
    Evidence(
        "tests/engine/states/test_units.py::test_chunks_of_prompts_beside_decodes",
        "FAMILIES", 1, "paged", "none", "CPU",
        "states in the pool, of prompts in chunks beside decodes",
    ),
    Evidence(
        "tests/engine/states/test_units.py::test_preempted_and_killed",
        "family", 1, "paged", "threads", "CPU",
        "states in the pool, preempted and killed, beside another model",
    ),
    Evidence(
        "tests/engine/windows/test_give_back.py::test_tokens_beyond_several_windows",
        "FAMILIES", 1, "paged", "none", "CPU",
        "greedy output beyond sliding windows, whose blocks are given back and filled with NaN",
    ),
    Evidence(
        "tests/engine/dense/test_equality.py::test_thirty_queries_come_and_go",
        "FAMILIES", 1, "dense", "none", "CPU",
        "greedy output while rows come and go",
    ),
    Evidence(
        "tests/engine/dense/test_units.py::test_answers_are_those_of_the_library",
        "family", 1, "dense", "none", "CPU",
        "greedy output in a unit, beside a paged model",
    ),
    Evidence(
        "tests/engine/dense/test_units.py::test_prefills_and_decodes_in_workers_of_their_own",
        "family", 1, "dense", "threads", "CPU",
        "prefill in one process, decode in another",
    ),
    Evidence(
        "tests/engine/parallel/test_division.py::test_two_ranks_compute_what_hugging_face_does",
        "FAMILIES", 2, "paged", "none", "CPU (gloo)",
        "logits of two processes that hold a half each",
    ),
    Evidence(
        "tests/engine/parallel/test_ranks.py::test_greedy_outputs_are_hugging_faces_with_preemption",
        "MODELS", 2, "paged", "none", "CPU (gloo)",
        "greedy output of two processes, with preemption",
    ),
    Evidence(
        "tests/engine/parallel/test_families_on_ranks.py::test_every_family",
        "MATRIX", 4, "paged", "none", "CPU (gloo)",
        "greedy output of two and of four ranks, replicated KV heads and experts included",
    ),
    Evidence(
        "tests/engine/parallel/test_worker_groups.py::test_late_ranks_and_a_loss_amid_jobs",
        "MATRIX_MODELS", 2, "paged", "threads", "CPU (gloo)",
        "greedy output of two and three workers on two and four ranks, late at random, one killed",
    ),
    Evidence(
        "tests/engine/steps/test_decode_graphs.py::"
        "test_batches_that_grow_and_shrink_yield_hugging_faces_tokens",
        "FAMILIES", 1, "paged", "none", "stand-in",
        "decode steps recorded once and replayed, as CUDA graphs are",
    ),
    Evidence(
        "tests/engine/gpu/test_capture_lint.py::test_a_decode_step_can_be_captured",
        "FAMILIES", 1, "paged", "none", "stand-in",
        "a decode step holds nothing that a CUDA graph cannot capture",
    ),
    Evidence(
        "tests/engine/gpu/test_mps_workers.py::"
        "test_workers_that_map_the_owners_memory_say_the_same_tokens",
        "spec", 1, "paged", "mps", "stand-in",
        "owner and workers over memory files, with a fake MPS daemon",
    ),
    Evidence(
        "tests/engine/gpu/test_green.py::test_threads_over_one_memory_say_the_same_tokens",
        "tiny", 1, "paged", "green", "stand-in",
        "threads with parts of the multiprocessors in one process",
    ),
)  # fmt: skip


_QUANTISED = """\
## Quantised weights

Tokens are Hugging Face's for the weights that a checkpoint stands for, by
[test_units](../../tests/engine/quantised/test_units.py); the names are those of
[its checkpoints](../../tests/engine/quantised/checkpoints.py). "Killed": a worker and the owner of
the memory are killed amid the answers. Checkpoints whose inputs are rounded, too
(compressed-tensors `int-quantized`), are held against a formula for their logits. What runs fast
where is in [quantised weights](../guides/quantised.md#speed)."""
_METHODS = "tests/engine/quantised/checkpoints.py"
_UNITS = "tests/engine/quantised/test_units.py"
_QUANTISED_COLUMNS = (
    ("paged, width 1, `threads`, killed: CPU", "test_every_method_killed_and_resumed"),
    ("paged, width 2, `none`: CPU (gloo)", "test_every_method_divided_over_ranks"),
)


def support_page() -> str:
    """Return the page."""
    found = [(each, families_of(each)) for each in EVIDENCE]
    every = sorted({family for _, families in found for family in families})
    columns = sorted({_column(each) for each in EVIDENCE})
    matrix = [
        [f"`{family}`", *(_mark(family, column, found) for column in columns)] for family in every
    ]
    head = ("family", *(_title(column) for column in columns))
    rows = [
        (
            each.shows,
            _families(families),
            _title(_column(each)),
            _link(each),
        )
        for each, families in found
    ]
    refused = table(("what", "instead"), _REFUSALS)
    tests = table(("shows", "families", "on", "test"), rows)
    return page(
        _INTRODUCTION, table(head, matrix), "## The tests", tests, *_quantised(), _REFUSED, refused
    )


def _quantised() -> tuple[str, str]:
    """What quantised checkpoints run on. Raises LookupError if a test is gone."""
    constants = _constants(_module(_METHODS))
    rounding = _words(constants["ROUNDING"])
    methods = [each for each in _words(constants["METHODS"]) if each not in rounding]
    families = _families(_words(_constants(_module(_UNITS))["FAMILIES"]))
    for _, function in _QUANTISED_COLUMNS:
        _function(_UNITS, function)
    head = ("checkpoint", *(title for title, _ in _QUANTISED_COLUMNS))
    rows = [(f"`{method}`", *(families for _ in _QUANTISED_COLUMNS)) for method in methods]
    return _QUANTISED, table(head, rows)


def _column(each: Evidence) -> tuple[str, int, str, str]:
    return each.backend, each.width, each.partition, each.where


def _title(column: tuple[str, int, str, str]) -> str:
    backend, width, partition, where = column
    return f"{backend}, width {width}, `{partition}`: {where}"


def _mark(
    family: str,
    column: tuple[str, int, str, str],
    found: list[tuple[Evidence, tuple[str, ...]]],
) -> str:
    return "✓" if any(family in each and _column(row) == column for row, each in found) else ""


def _families(families: tuple[str, ...]) -> str:
    return ", ".join(f"`{each}`" for each in families)


def _path(each: Evidence) -> str:
    return each.test.partition("::")[0]


def _link(each: Evidence) -> str:
    return f"[{Path(_path(each)).stem}](../../{_path(each)})"


def families_of(evidence: Evidence) -> tuple[str, ...]:
    """Return the model families that a test runs with. Raises LookupError if it has none."""
    path, _, name = evidence.test.partition("::")
    module = _module(path)
    function = _function(path, name)
    constants = _constants(module)
    found = _words(constants[evidence.families]) if evidence.families in constants else ()
    if not found:
        found = _parameters(function, evidence.families) or _built(module)
    families = tuple(dict.fromkeys(each.split("-")[0] for each in found))
    if not families:
        raise LookupError(f"{evidence.test} names no family")
    return families


@cache
def _module(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def _function(path: str, name: str) -> ast.FunctionDef:
    for each in _module(path).body:
        if isinstance(each, ast.FunctionDef) and each.name == name:
            return each
    raise LookupError(f"{path} has no {name}")


def _constants(module: ast.Module) -> dict[str, ast.expr]:
    return {
        target.id: node.value
        for node in module.body
        for target in _targets(node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
    }


def _targets(node: ast.stmt) -> list[ast.Name]:
    if isinstance(node, ast.AnnAssign):
        return [node.target] if isinstance(node.target, ast.Name) else []
    if isinstance(node, ast.Assign):
        return [target for target in node.targets if isinstance(target, ast.Name)]
    return []


def _words(value: ast.expr) -> tuple[str, ...]:
    """Return the names in ("llama", …), (("llama", {…}), …) or {"llama": {…}, …}."""
    if isinstance(value, ast.Dict):
        return tuple(key.value for key in value.keys if isinstance(key, ast.Constant))
    if not isinstance(value, ast.Tuple | ast.List):
        return ()
    firsts = [each.elts[0] if isinstance(each, ast.Tuple) else each for each in value.elts]
    return tuple(str(each.value) for each in firsts if isinstance(each, ast.Constant))


def _parameters(function: ast.FunctionDef, name: str) -> tuple[str, ...]:
    """Return the values of a parameter in the function's own parametrisation."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and len(decorator.args) == 2:
            first, values = decorator.args
            if isinstance(first, ast.Constant) and first.value == name:
                return _words(values)
    return ()


def _built(module: ast.Module) -> tuple[str, ...]:
    """Return the families that the module builds by name: `tiny("llama")`."""
    return tuple(
        str(node.args[0].value)
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "tiny"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    )
