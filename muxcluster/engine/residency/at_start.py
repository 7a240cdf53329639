"""Which models are resident when a unit starts."""

from muxcluster.core.residency import Residency
from muxcluster.core.unitspec import UnitSpec


def resident_at_start(spec: UnitSpec) -> tuple[str, ...]:
    """Return those that always are, then "auto" ones by falling rate, as far as each fits."""
    if not spec.resident_bytes:
        return tuple(model.name for model in spec.models)
    names, left = [], spec.resident_bytes
    by_rate = sorted(spec.models, key=lambda model: -model.rate_per_s)
    for kind in (Residency.ALWAYS, Residency.AUTO):
        for model in by_rate:
            if model.residency is kind and model.resident_bytes <= left:
                names.append(model.name)
                left -= model.resident_bytes
    return tuple(names)
