"""From a plan to the specifications of units, and the models that the edge serves."""

from collections.abc import Sequence
from dataclasses import replace

from muxcluster.config.load import Config, ConfiguredModel
from muxcluster.config.planner_input import ITEMSIZE, dtype_of, engine_gpu, nodes_of, problem
from muxcluster.core.backends import ENCODER
from muxcluster.core.errors import ConfigError
from muxcluster.core.request import Slo
from muxcluster.core.residency import Residency
from muxcluster.core.served import ServedModel
from muxcluster.core.unitspec import AdapterSpec, ModelSpec, UnitSpec
from muxcluster.placement import specs
from muxcluster.placement.execution import CannotRun, execution_of, move_refusal
from muxcluster.placement.memory import DoesNotFit
from muxcluster.placement.plan import Plan
from muxcluster.placement.problem import Node, Problem


def unit_specs(
    config: Config, plan: Plan, nodes: Sequence[Node] | None = None
) -> tuple[UnitSpec, ...]:
    """One specification per unit of the plan, ready to start: those of `placement.specs`, with
    paths and what else only an engine needs.

    nodes: as given to `plan_for`. Raises ConfigError if the plan and the file disagree, a
    model has a shape but no path, its heads cannot be divided among a unit's GPUs, or a unit parks
    models where the engine cannot.
    """
    if not plan.units:
        return ()
    known = tuple(nodes or nodes_of(config))
    _check_names(config, plan, known)
    computing = tuple(replace(node, gpu=engine_gpu(config, node.gpu)) for node in known)
    asked = replace(problem(config, known), nodes=computing)
    try:
        _check_moves(config, plan, asked)
        found = specs.unit_specs(asked, plan)
    except CannotRun as error:
        raise ConfigError(config.file, f"policy.{error.key}", str(error)) from error
    except DoesNotFit as error:
        index = [model.name for model in config.models].index(error.model)
        raise ConfigError(config.file, f"models[{index}]", str(error)) from error
    _check_rooms(config, found)
    models = {model.name: model for model in config.models}
    dtypes = {name: dtype_of(config, model, known) for name, model in models.items()}
    return tuple(
        replace(
            spec,
            models=tuple(
                _served(config, each, models[each.name], dtypes[each.name]) for each in spec.models
            ),
        )
        for spec in found
    )


def served_models(config: Config) -> tuple[ServedModel, ...]:
    """Return what the edge knows of each model, its adapters behind it.

    Raises ConfigError for one without a path.
    """
    found: list[ServedModel] = []
    for model in config.models:
        served = _served_model(config, model)
        found.append(served)
        found += [replace(served, name=each.name, base=model.name) for each in model.adapters]
    return tuple(found)


def _served_model(config: Config, model: ConfiguredModel) -> ServedModel:
    return ServedModel(
        name=model.name,
        path=_path(config, model),
        max_model_len=model.max_model_len,
        vocab_size=model.facts.shape.vocab_size,
        eos_token_ids=model.facts.eos_token_ids,
        slo=_slo(model),
        tool_format=model.section.tool_format,
        reasoning=model.section.reasoning,
        embedding=model.facts.embedding,
        scoring=model.facts.scoring,
        takes_images=model.facts.takes_images,
    )


def _check_names(config: Config, plan: Plan, nodes: Sequence[Node]) -> None:
    """Raise ConfigError for a node or model of the plan that the cluster or the file lacks."""
    known = {node.name for node in nodes}
    names = {model.name for model in config.models}
    for unit in plan.units:
        if unit.node not in known:
            raise ConfigError(config.file, "cluster.nodes", f"no node {unit.node!r} of the plan")
        for planned in unit.models:
            if planned.name not in names:
                raise ConfigError(config.file, "models", f"no model {planned.name!r} of the plan")


def _check_moves(config: Config, plan: Plan, asked: Problem) -> None:
    """Raise ConfigError for a unit that parks and wakes models on a mesh whose engine cannot.

    asked: with the hardware that computes.
    """
    gpus = {node.name: node.gpu for node in asked.nodes}
    for unit in plan.units:
        gpu = gpus[unit.node]
        refusal = move_refusal(gpu, execution_of(gpu, unit, asked.policy))
        if unit.resident_bytes and refusal:
            parked = [model.name for model in unit.models if model.residency != "always"]
            message = (
                f"the plan parks models of unit {unit.id} ({', '.join(parked)}), because not all "
                f"of its models fit at once, but {refusal}. Give it fewer models or more memory; "
                "place and simulate show the plan as it is"
            )
            raise ConfigError(config.file, "models", message)


def _check_rooms(config: Config, found: Sequence[UnitSpec]) -> None:
    """Raise ConfigError for a unit that could not wake one of its models: the plan was made for
    another residency."""
    for spec in found:
        if not spec.resident_bytes:
            continue
        always = sum(
            each.resident_bytes for each in spec.models if each.residency is Residency.ALWAYS
        )
        for each in spec.models:
            need = always + each.resident_bytes * (each.residency is not Residency.ALWAYS)
            if need > spec.resident_bytes:
                message = f"unit {spec.unit_id} has no room to wake {each.name}: make a new plan"
                raise ConfigError(config.file, "models", message)


def _served(config: Config, spec: ModelSpec, model: ConfiguredModel, dtype: str) -> ModelSpec:
    section, embedding = model.section, model.facts.embedding
    if embedding is not None:
        spec = replace(spec, embedding_size=embedding.size, pooling=embedding.pooling)
    if model.facts.scoring is not None:
        spec = replace(spec, embedding_size=1, pooling="score")
    is_encoder, places = model.facts.is_encoder, section.adapter_places
    return replace(
        spec,
        path=_path(config, model),
        eos_token_ids=model.facts.eos_token_ids,
        dtype=dtype,
        load_format=section.load_format,
        seed=section.seed,
        quantize="" if section.quantize == "none" else section.quantize,
        backend=ENCODER if is_encoder else section.backend,
        prefix_caching=spec.prefix_caching and not is_encoder,
        trust_remote_code=section.trust_remote_code,
        adapters=tuple(
            AdapterSpec(
                each.name, str(each.files.directory), ITEMSIZE[dtype] * each.files.num_elements
            )
            for each in model.adapters
        ),
        adapter_places=0 if places is None else places.count,
        adapter_rank=0 if places is None else places.rank,
    )


def _path(config: Config, model: ConfiguredModel) -> str:
    if model.path is None:
        index = config.models.index(model)
        raise ConfigError(
            config.file, f"models[{index}].path", "missing; a shape is enough to plan, not to serve"
        )
    return str(model.path)


def _slo(model: ConfiguredModel) -> Slo | None:
    slo = model.section.slo
    return None if slo is None else Slo(slo.ttft, slo.tpot)
