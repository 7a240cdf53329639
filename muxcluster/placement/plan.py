"""The planner's answer, and plan.json (design.md §8)."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from muxcluster.core.residency import Residency

Share = Annotated[float, Field(gt=0, le=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Brief(_Frozen):
    """A part of a plan whose fields about residency and batch work are left out of plan.json where
    every model of the unit is always resident, or no batch work is asked."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = serialize(self)
        fields = type(self).model_fields
        return {
            key: value
            for key, value in found.items()
            if key not in _LEFT_OUT or getattr(self, key) != fields[key].default
        }


_LEFT_OUT = frozenset(
    ("residency", "wakes_per_h", "wake_s", "waking_p50_s", "waking_p95_s")
    + ("resident_bytes", "unproven", "backlog_tokens_per_s")
)


class PlannedModel(_Brief):
    """One model of a unit."""

    name: str
    prefill_sm: Share  # prefill_sm, decode_sm: SM shares its jobs are expected to take
    decode_sm: Share
    batch: Amount  # mean decode batch
    quota_blocks: Count  # initial quota of KV blocks
    throughput: Amount  # requests/s it is expected to serve
    # prompt and output tokens/s of its batch work that are expected to be done here; None, and not
    # in the file, where none is asked
    backlog_tokens_per_s: Amount | None = None
    # Where not all of the unit's models are resident at once: what may become of its weights, how
    # often it is expected to be woken, how long that takes, and by how much that delays the first
    # token (median and 95th percentile over all of its requests)
    residency: Residency = Residency.ALWAYS
    wakes_per_h: Amount = 0.0
    wake_s: Amount = 0.0
    waking_p50_s: Amount = 0.0
    waking_p95_s: Amount = 0.0


class PlannedWorker(_Frozen):
    """One worker of a unit: runs one job at a time, at one of a few SM shares."""

    phases: tuple[Literal["prefill", "decode", "mixed"], ...]  # of the jobs it may run
    shares: tuple[Share, ...]  # ascending


class PlannedExecution(_Frozen):
    """How a unit runs its jobs (`placement.execution.Execution`)."""

    lane: str
    partition: str
    workers: tuple[PlannedWorker, ...]
    pipeline_depth: Annotated[int, Field(ge=1)]
    may_unshare: bool = False
    unproven: bool = False  # no GPUs have run units in this way yet


class PlannedUnit(_Brief):
    """A mesh and the models colocated on it."""

    id: str
    node: str
    gpus: tuple[Count, ...]  # indices on the node, `tp` of them
    tp: Annotated[int, Field(ge=1)]
    kv_blocks: Count  # size of its pool, over all its GPUs
    models: tuple[PlannedModel, ...]
    execution: PlannedExecution | None = None  # None: the first that mesh and policy permit
    # Memory for what models take while they are resident (weights, tables), over all its GPUs;
    # 0: all of them always are
    resident_bytes: Count = 0
    unproven: str = ""  # why no engine can start it so yet


class Plan(_Frozen):
    """A placement of all models.

    >>> from muxcluster import load_config, plan
    >>> found = plan(load_config("examples/small.yaml"), time_limit_s=0)
    >>> f"{found.throughput:.1f} requests/s on {sum(unit.tp for unit in found.units)} GPUs"
    '7.1 requests/s on 2 GPUs'
    """

    method: str  # method, objective: of the planner
    objective: str
    score: Amount  # the objective's value
    throughput: Amount  # requests/s over all models
    bound: Amount | None  # upper bound of any plan's score, None if unknown
    solve_seconds: Amount  # time the planner took
    units: tuple[PlannedUnit, ...]

    def to_json(self) -> str:
        """Return the text of a plan.json."""
        return self.model_dump_json(indent=2)

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Read a plan.json. Raises OSError, or pydantic's ValidationError (a ValueError)."""
        return cls.model_validate_json(path.read_bytes())
