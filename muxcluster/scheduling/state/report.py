"""One model's state as numbers for metrics."""

from muxcluster.core.served import ModelStats
from muxcluster.scheduling.state.model import ModelState
from muxcluster.scheduling.steptime.model import StepTimes


def model_stats(model: ModelState, times: StepTimes) -> ModelStats:
    """The model now; counters never decrease."""
    counters = model.counters
    return ModelStats(
        name=model.name,
        num_running=model.running.num_live,
        num_waiting=len(model.waiting),
        quota_blocks=model.kv.quota,
        used_blocks=model.kv.used,
        cached_blocks=model.kv.num_cached,
        rate_per_s=model.meter.rate_per_s,
        is_rate_measured=model.meter.has_measured,
        prefix_queries=counters.prefix_queries,
        prefix_hits=counters.prefix_hits,
        num_shared_reads=counters.num_shared_reads,
        num_preemptions=counters.num_preemptions,
        num_lent_columns=counters.num_lent_columns,
        num_saved_slots=counters.num_saved_slots,
        num_restored_slots=counters.num_restored_slots,
        num_recomputed_tokens=counters.num_recomputed_tokens,
        prompt_tokens=counters.prompt_tokens,
        output_tokens=counters.output_tokens,
        num_non_finite=counters.num_non_finite,
        batch_blocks=model.kv.batch_used,
        num_lent=model.running.num_lent,
        waiting_tokens=model.waiting.num_tokens + model.running.num_uncomputed,
        padded_usage=0.0 if model.scaling is None else model.scaling.usage,
        backend=model.spec.backend,
        step_time_error=_mean_error(model.name, times),
    )


def _mean_error(model: str, times: StepTimes) -> float:
    """Over all phases, by how many jobs of each there were."""
    errors = [error for (name, _), error in times.errors().items() if name == model]
    count = sum(error.count for error in errors)
    return sum(error.count * error.mean for error in errors) / count if count else 0.0
