"""The planner's answer, and plan.json (DESIGN.md §8)."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(gt=0, le=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedModel(_Frozen):
    """One model of a unit.

    prefill_sm, decode_sm: SM shares its jobs are expected to take. batch: mean decode batch.
    quota_blocks: KV blocks it may hold at first. throughput: requests/s it is expected to serve.
    """

    name: str
    prefill_sm: Share
    decode_sm: Share
    batch: Amount
    quota_blocks: Count
    throughput: Amount


class PlannedUnit(_Frozen):
    """A mesh and the models colocated on it.

    gpus: indices on the node, `tp` of them. kv_blocks: its pool, over all its GPUs.
    """

    id: str
    node: str
    gpus: tuple[Count, ...]
    tp: Annotated[int, Field(ge=1)]
    kv_blocks: Count
    models: tuple[PlannedModel, ...]


class Plan(_Frozen):
    """A placement of all models.

    method, objective: what found it and what was maximised; score: the objective's value.
    throughput: requests/s over all models. bound: what no plan can exceed, None if unknown.
    solve_seconds: time the planner took.
    """

    method: str
    objective: str
    score: Amount
    throughput: Amount
    bound: Amount | None
    solve_seconds: Amount
    units: tuple[PlannedUnit, ...]

    def to_json(self) -> str:
        """The text of plan.json."""
        return self.model_dump_json(indent=2)

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """A plan.json. Raises OSError, or pydantic's ValidationError (a ValueError)."""
        return cls.model_validate_json(path.read_bytes())
