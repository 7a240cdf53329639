"""Faults that the tests must find: one changed line of the source each, and who sees it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`line`, which occurs once in `file` (below muxcluster), becomes `planted`; `tests` fail."""

    name: str
    file: str
    line: str
    planted: str
    tests: str


FAULTS = (
    Fault(
        "interactive requests ignore the quota of their model",
        "kvcache/pool.py",
        "return min(self.quota_left(model), self.free + self.evictable + self.lent)",
        "return self.free + self.evictable + self.lent",
        "tests/kvcache/test_cache_random.py",
    ),
    Fault(
        "the most recently used column is evicted first",
        "kvcache/eviction.py",
        "model, column = entries.popitem(last=False)[0]",
        "model, column = entries.popitem(last=True)[0]",
        "tests/kvcache/test_cache_rules.py tests/kvcache/test_cache_random.py",
    ),
    Fault(
        "a column behind a window is given back a token too early",
        "kvcache/kinds.py",
        "np.maximum(num_tokens + np.int32(1 - self.window), 0)",
        "np.maximum(num_tokens + np.int32(2 - self.window), 0)",
        "tests/kvcache/test_windows.py",
    ),
    Fault(
        "states that lie over lent blocks are not saved",
        "kvcache/model.py",
        "return num_tokens + self.model.state_columns * self.block_tokens",
        "return num_tokens",
        "tests/kvcache/test_states.py",
    ),
    Fault(
        "a row goes on from states of other tokens",
        "engine/states/rows.py",
        "np.where(self._store.lengths(halves) == rows.starts, rows.starts, 0)",
        "np.where(True, rows.starts, 0)",
        "tests/engine/states/test_units.py",
    ),
    Fault(
        "a block's hash does not depend on the blocks before it",
        "core/hashing.py",
        "parent = hashlib.sha256(parent + data[start : start + width]).digest()",
        "parent = hashlib.sha256(data[start : start + width]).digest()",
        "tests/kvcache tests/router tests/http",
    ),
    Fault(
        "a model that was passed over is never put first",
        "scheduling/lanes/adbs.py",
        "return (-1.0 if last <= patience_ended else slack_s(model, now)), last",
        "return slack_s(model, now), last",
        "tests/scheduling/test_adbs.py tests/sim/test_same_decisions.py",
    ),
    Fault(
        "decodes do not leave room for the running prefill",
        "scheduling/lanes/adbs.py",
        "(1.0 - prefill) * works[model.name]",
        "works[model.name]",
        "tests/scheduling/test_adbs.py tests/scheduling/test_shares.py",
    ),
    Fault(
        "the token that reaches max_tokens is one too many",
        "scheduling/completion.py",
        "    kept = np.minimum(counts, limits)",
        "    kept = np.minimum(counts, limits + 1)",
        "tests/scheduling/test_stopping.py",
    ),
    Fault(
        "an end token is not kept",
        "scheduling/completion.py",
        "kept[is_stopped] = first_end[is_stopped] + 1",
        "kept[is_stopped] = first_end[is_stopped]",
        "tests/scheduling/test_stopping.py",
    ),
    Fault(
        "top-p keeps one token more than its nucleus",
        "engine/sampling/truncation.py",
        "kept = (mass < (top_p * whole).unsqueeze(1)).sum(-1)",
        "kept = (mass < (top_p * whole).unsqueeze(1)).sum(-1) + 1",
        "tests/engine/sampling/test_truncation.py",
    ),
    Fault(
        "the presence penalty counts occurrences",
        "engine/sampling/penalties.py",
        "logits[row_ids, tokens] -= frequency * counts + presence",
        "logits[row_ids, tokens] -= (frequency + presence) * counts",
        "tests/engine/sampling/test_penalties.py",
    ),
    Fault(
        "negative logits of repeated tokens are divided, too",
        "engine/sampling/penalties.py",
        "torch.where(scores < 0, scores * penalty, scores / penalty)",
        "scores / penalty",
        "tests/engine/sampling/test_penalties.py",
    ),
    Fault(
        "of stop strings that end together the shortest wins",
        "text/stop.py",
        "sorted(stops, key=len, reverse=True)",
        "sorted(stops, key=len)",
        "tests/text/test_stop.py",
    ),
    Fault(
        "half a character is given out",
        "text/detokenizer.py",
        "return text[:-1] if text.endswith(_INCOMPLETE) else text",
        "return text",
        "tests/text/test_detokenizer.py",
    ),
    Fault(
        "one request more than the queue holds is admitted",
        "http/calls/admission.py",
        "if queue.num_waiting + num_requests > queue.limit:",
        "if queue.num_waiting + num_requests > queue.limit + 1:",
        "tests/http/test_overload.py",
    ),
    Fault(
        "a request that is sent again has not told what it has already",
        "router/recovery.py",
        "            output_tokens=np.array(self._tokens, dtype=np.int32),\n",
        "",
        "tests/http/test_recovery.py",
    ),
    Fault(
        "prompt log-probabilities are told twice after a loss",
        "router/recovery.py",
        "fresh = delta.prompt_logprobs[self._num_repeated :]",
        "fresh = delta.prompt_logprobs",
        "tests/http/test_recovery.py",
    ),
    Fault(
        "the router forgets which prefixes a unit has",
        "router/routing.py",
        "num_left = num_tokens - unit.prefixes.num_known(chunks) * CHUNK_TOKENS",
        "num_left = num_tokens",
        "tests/router",
    ),
    Fault(
        "a cycle has the jobs of busy models only once in two",
        "placement/estimator/turns.py",
        "return sum(turn.busy * turn.job_s for turn in turns)",
        "return sum(turn.busy * turn.job_s for turn in turns) / 2",
        "tests/placement/test_estimator.py",
    ),
    Fault(
        "an all-reduce sends the hidden states once",
        "placement/cost/roofline.py",
        "sent = 2 * (1 - 1 / work.tp)",
        "sent = (1 - 1 / work.tp)",
        "tests/placement/cost/test_cost.py",
    ),
    Fault(
        "jobs side by side do not slow one another",
        "sim/core/concurrency.py",
        "max(0.0, self.first.end - self._clock) * self._slowdown",
        "max(0.0, self.first.end - self._clock)",
        "tests/sim/test_concurrency.py",
    ),
    Fault(
        "a failed write leaves its beginning in the file",
        "batch/store/appending.py",
        "        os.ftruncate(handle, offset)\n        raise",
        "        raise",
        "tests/batch",
    ),
    Fault(
        "every rank has the first rank's KV heads",
        "placement/shapes/division.py",
        "return tuple((rank * mine + place * served) // group for place in range(here))",
        "return tuple((place * served) // group for place in range(here))",
        "tests/placement/test_division.py",
    ),
    Fault(
        "the ranks do not add what their experts make",
        "engine/load/division/layers.py",
        "return self._group.all_reduce(self.part(*inputs).contiguous())",
        "return self.part(*inputs).contiguous()",
        "tests/engine/parallel/test_division.py",
    ),
    Fault(
        "the blocks of one GPU count for the whole mesh",
        "placement/memory.py",
        "return tp * _column(demand, bytes_per_block, tp).num_blocks(num_tokens)",
        "return _column(demand, bytes_per_block, tp).num_blocks(num_tokens)",
        "tests/placement/test_division.py",
    ),
)
