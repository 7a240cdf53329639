"""Figures in the documentation that are no measurements: a line of the repository sets each."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stated:
    """`figure` stands in `page`; `line` of `file` sets it."""

    page: str
    figure: str
    file: str
    line: str


_TEMPLATES = "docs/generate/results/pages"
_RENDERING = "muxcluster/text/rendering/process.py"
_SCHEDULING = "docs/concepts/scheduling.md"
_WAKES, _RETRIES = (f"muxcluster/scheduling/residency/{name}.py" for name in ("policy", "weights"))
_PLAN, _RESIDENCY = "docs/guides/plan.md", "docs/concepts/residency.md"
_MEMORY = "muxcluster/placement/memory.py"
_RETRY_LINE = "_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 30.0"
_PAUSE_LINE = "_FIRST_PAUSE_S, _LAST_PAUSE_S = 30.0, 600.0"
_CONSTRAINTS = "docs/concepts/structured-outputs.md"
_MASKS = "muxcluster/constraints"
STATED = (
    Stated(_CONSTRAINTS, "256 KiB", f"{_MASKS}/grammars.py", "MOST_BYTES = 256 * 1024"),
    Stated(_CONSTRAINTS, "2 s", f"{_MASKS}/process/keeper.py", "CHECK_CPU_S = 2"),
    Stated(_CONSTRAINTS, "512 MiB", f"{_MASKS}/process/keeper.py", "CHECK_BYTES = 512 * 2**20"),
    Stated(_CONSTRAINTS, "4 GiB", f"{_MASKS}/process/keeper.py", "SERVER_BYTES = 4 * 2**30"),
    Stated(
        "docs/guides/images.md",
        "48 MiB",
        "muxcluster/http/calls/pictures.py",
        "MOST_BYTES = 48 * 2**20",
    ),
    Stated(
        "docs/guides/other-apis.md",
        "32 MiB",
        "muxcluster/http/apis/responses/store.py",
        "MOST_TURN_BYTES = 32 * 2**20",
    ),
    Stated(_CONSTRAINTS, "4 s", f"{_MASKS}/process/server.py", "MOST_ROW_CPU_S = 4.0"),
    Stated(_RESIDENCY, "0.1 s", _MEMORY, "_GPU_WAKE_S = 0.1"),
    Stated(_RESIDENCY, "0.5 s", _MEMORY, "_CPU_WAKE_S = 0.5"),
    Stated(_RESIDENCY, "30 s", _RETRIES, _PAUSE_LINE),
    Stated(_RESIDENCY, "10 minutes", _RETRIES, _PAUSE_LINE),
    Stated(_PLAN, "20 tokens/s", "muxcluster/cluster/state/rates.py", "LEAST_TOKENS_PER_S = 20.0"),
    Stated(_SCHEDULING, "10 s", _WAKES, "NO_TARGET_S = 10.0"),
    Stated(_SCHEDULING, "0.5 s", _RETRIES, _RETRY_LINE),
    Stated(_SCHEDULING, "30 s", _RETRIES, _RETRY_LINE),
    Stated(
        "docs/guides/interactive-and-batch.md",
        "30 s",
        "muxcluster/scheduling/packing/batch.py",
        "ageing_s: float = 30.0",
    ),
    Stated(
        "docs/guides/openai-api.md",
        "64 KiB",
        "muxcluster/http/server/connection.py",
        "num_bytes: int = 64 * 2**10",
    ),
    Stated("docs/guides/openai-api.md", "2 s", _RENDERING, "cpu_s: float = 2.0"),
    Stated("docs/guides/openai-api.md", "512 MiB", _RENDERING, "memory_bytes: int = 512 * 2**20"),
    Stated(
        "docs/internals/glossary.md", "99 %", "muxcluster/workload/metrics/slo.py", "LEVEL = 0.99"
    ),
    Stated("docs/operations/failures.md", "5 s", "muxcluster/channel/client.py", "SILENCE_S = 5.0"),
    Stated("docs/operations/failures.md", "10 s", "cluster.yaml", "within 10 s; Ray's defaults"),
    Stated("docs/operations/security.md", "5 s", "muxcluster/channel/client.py", "SILENCE_S = 5.0"),
    Stated(
        # a heartbeat's period and the time for its answer
        "docs/operations/security.md",
        "4 s",
        "muxcluster/channel/curve.py",
        "UNREACHABLE_MS = 3000",
    ),
    Stated(
        f"{_TEMPLATES}/blendserve.md",
        "1 %",
        "muxcluster/offline/blend/lengths.py",
        "SAMPLE_SHARE = 0.01",
    ),
    Stated(
        "docs/guides/monitoring.md",
        "30 s",
        "muxcluster/http/live/conditions.py",
        "OVERLOAD_S = 30.0",
    ),
    Stated(
        "docs/operations/security.md",
        "5 seconds",
        "muxcluster/http/server/tls.py",
        "RENEW_PERIOD_S = 5.0",
    ),
    Stated(
        "docs/operations/threat-model.md",
        "10 s",
        "muxcluster/http/server/tls.py",
        "GREETING_S = 10.0",
    ),
    Stated(f"{_TEMPLATES}/bros.md", "1.25 ×", "bench/hybrid/on_engine/parts.py", "FACTOR = 1.25"),
    Stated(
        f"{_TEMPLATES}/muxserve.md",
        "95 %",
        "bench/muxserve/simulated/judging.py",
        "half = 1.96 * stdev(found)",
    ),
    Stated(
        f"{_TEMPLATES}/muxserve.md", "99 %", "muxcluster/workload/metrics/slo.py", "LEVEL = 0.99"
    ),
    Stated(
        f"{_TEMPLATES}/muxserve.md",
        "40 requests/s",
        "bench/muxserve/simulated/cases.py",
        "40 requests/s for the most popular",
    ),
)
