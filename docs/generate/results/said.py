"""What each claim of the records says, what it is held against, and why it was missed."""

from collections.abc import Mapping
from dataclasses import replace

from docs.generate.claims import Said

# Claims whose record has no unit.
_SHARES = frozenset(
    {
        "saving_ratio",
        "saving_ratio_lru",
        "cool_down_free_time_cut",
        "share_of_optimum",
        "share_of_ideal",
        "prefix_sharing_of_optimum",
        "saving_of_optimum_min",
        "estimate_error_at_half",
    }
)
_MUXSERVE = (
    Said("units_that_differ", "simulated units that the engine would build otherwise", "less"),
    Said(
        "throughput_over_best_rival_min",
        "requests/s over the best rival, at the worst point",
        "more",
    ),
    Said(
        "within_slo_over_best_rival_min",
        "requests within the SLO over the best rival, at the worst point",
    ),
    Said(
        "throughput_over_spatial_max", "requests/s over one mesh a model, at most", "more", "paper"
    ),
    Said("throughput_over_spatial_third", "the same, at the third best point", "more"),
    Said("throughput_over_temporal_max", "requests/s over time sharing, at most", "more", "paper"),
    Said(
        "requests_at_99_over_spatial_max",
        "highest rate with 99 in 100 requests within the SLO, over one mesh a model, at most",
        "more",
        "paper",
    ),
    Said(
        "requests_at_99_over_temporal_max",
        "highest rate with 99 in 100 requests within the SLO, over time sharing, at most",
        "more",
        "paper",
        "Time sharing runs on our placement here, replicas included, so it is a stronger rival than "
        "in the paper.",
    ),
    Said("worst_fair_share", "least fair share of a model on one mesh", "more"),
    Said("worst_fair_share_of_cluster", "least fair share over all meshes"),
)
_ABLATIONS = (
    Said(
        "placement_8_gpus_max",
        "our placement over most free memory first, 8 GPUs, 4 models",
        "more",
        "paper",
        "At the paper's rates both placements serve nearly everything; under overload ours gives the "
        "most popular model several meshes and takes them from the others.",
    ),
    Said(
        "placement_16_gpus_max",
        "our placement over most free memory first, 16 GPUs, 7 models",
        "more",
        "paper",
    ),
    Said("sm_sharing_max", "sharing of SMs, throughput", "more", "paper"),
    Said("wide_sm_sharing_max", "sharing of SMs on 4 GPUs over mixed jobs, throughput", "more"),
    Said(
        "wide_over_mixed_max",
        "the same over mixed jobs without quotas, throughput",
        "more",
        "",
        "Where memory is short, small models without quotas take it from large ones: more requests "
        "are served, and less fairly.",
    ),
    Said(
        "unified_kv_max",
        "unified KV, throughput, popularity known",
        "more",
        "paper",
        "A division by planned rate and length is already right under steady arrivals; moving blocks "
        "is fairer then, and not more.",
    ),
    Said(
        "unified_kv_slo_max",
        "unified KV, within SLO, popularity known",
        "more",
        "paper",
        "For the same reason.",
    ),
    Said(
        "unified_kv_unknown_popularity_max",
        "unified KV, throughput, popularity not known",
        "more",
        "paper",
    ),
    Said(
        "unified_kv_unknown_popularity_slo_max",
        "unified KV, within SLO, popularity not known",
        "more",
        "paper",
        "It would need a divided pool that fails nearly everybody. Here the most popular model alone "
        "lacks room.",
    ),
    Said("chatlmsys_over_spatial_max", "ChatLMSYS over one mesh a model", "more", "paper"),
    Said(
        "chatlmsys_over_temporal_max",
        "ChatLMSYS over time sharing",
        "more",
        "paper",
        "Time sharing runs on our placement, replicas included.",
    ),
    Said(
        "chatlmsys_weighted_over_spatial_max",
        "ChatLMSYS over one mesh a model, rate-weighted",
        "more",
        "paper",
    ),
    Said(
        "chatlmsys_weighted_over_temporal_max",
        "ChatLMSYS over time sharing, rate-weighted",
        "more",
        "paper",
    ),
    Said("chatlmsys_over_spatial_by_load_max", "ChatLMSYS over one mesh a model sized by load"),
)
_FIDELITY = (
    Said(
        "total_throughput_median_abs_error", "error of total requests/s, median of all runs", "less"
    ),
    Said("total_throughput_max_abs_error", "error of total requests/s, at most"),
    Said("per_model_median_abs_error", "error of one model's requests/s, median"),
    Said(
        "ranking_accuracy",
        "points with all three systems in the measured order",
        "more",
        "goal",
        "The two baselines change places where they were measured within a few percent of each other, "
        "and where a time-shared mesh of two popular models is too slow in the simulation.",
    ),
    Said(
        "pair_ranking_accuracy",
        "pairs of systems in the measured order, those measured apart",
        "more",
    ),
)
_BROS = (
    Said(
        "normalised_latency_cut_vs_fcfs",
        "cut of interactive normalised latency against `fcfs`",
        "more",
        "paper",
    ),
    Said(
        "normalised_latency_cut_vs_round_robin",
        "cut of interactive normalised latency against `round-robin`",
        "more",
        "paper",
    ),
    Said(
        "batch_throughput_loss_vs_fcfs",
        "loss of batch tokens/s against `fcfs`",
        "less",
        "paper",
        "Of both classes together ours computes more tokens than `fcfs`. At high rates `fcfs` leaves "
        "interactive requests waiting and computes batch tokens instead; ours serves them when they "
        "come, on GPUs that are full either way.",
    ),
    Said(
        "batch_throughput_loss_vs_round_robin",
        "loss of batch tokens/s against `round-robin`",
        "less",
        "paper",
    ),
    Said("ttft_attainment", "first tokens in time", "more", "paper"),
    Said("tpot_attainment", "other tokens in time", "more", "paper"),
    Said("all_tokens_ratio_vs_fcfs", "tokens of both classes over `fcfs`"),
    Said("normalised_latency_cut_vs_fcfs_bearable", "latency cut against `fcfs`, bearable rates"),
    Said(
        "normalised_latency_cut_vs_round_robin_bearable",
        "latency cut against `round-robin`, bearable rates",
    ),
    Said(
        "batch_throughput_loss_vs_fcfs_bearable",
        "loss of batch tokens against `fcfs`, bearable rates",
    ),
    Said(
        "batch_throughput_loss_vs_round_robin_bearable",
        "loss of batch tokens against `round-robin`, bearable rates",
    ),
    Said("ttft_attainment_bearable", "first tokens in time, bearable rates"),
    Said("tpot_attainment_bearable", "other tokens in time, bearable rates"),
    Said("apart_ttft_ratio", "TTFT without bidirectional blocks over with", "more", "paper"),
    Said(
        "apart_tpot_ratio",
        "TPOT without bidirectional blocks over with",
        "more",
        "paper",
        "A request that is in does not wait for memory here, with or without them.",
    ),
    Said(
        "alone_latency_cut_vs_fcfs",
        "latency cut for interactive requests alone",
        "more",
        "paper",
        "Up to medium rates there is nothing to reorder.",
    ),
    Said(
        "alone_throughput_ratio_vs_fcfs",
        "throughput over `fcfs`, interactive requests alone",
        "more",
        "paper",
        "The same.",
    ),
    Said(
        "normalised_latency_cut_vs_fcfs_lmsys",
        "LMSYS lengths: latency cut against `fcfs`",
        "more",
        "paper",
    ),
    Said(
        "normalised_latency_cut_vs_round_robin_lmsys",
        "LMSYS lengths: latency cut against `round-robin`",
        "more",
        "paper",
    ),
    Said(
        "batch_throughput_loss_vs_fcfs_lmsys",
        "LMSYS lengths: loss of batch tokens against `fcfs`",
        "less",
        "paper",
    ),
    Said(
        "batch_throughput_loss_vs_round_robin_lmsys",
        "LMSYS lengths: loss of batch tokens against `round-robin`",
        "less",
        "paper",
    ),
    Said("ttft_attainment_lmsys", "LMSYS lengths: first tokens in time"),
    Said("tpot_attainment_lmsys", "LMSYS lengths: other tokens in time"),
    Said("all_tokens_ratio_vs_fcfs_lmsys", "LMSYS lengths: tokens of both classes over `fcfs`"),
)
_BROS_ENGINE = (
    Said("interactive_ttft_p99_ratio", "p99 of the first token over its target", "less"),
    Said("interactive_tpot_p99_ratio", "p99 of the other tokens over their target", "less"),
    Said(
        "batch_throughput_kept",
        "batch tokens/s of what interactive requests leave",
        "more",
        "goal",
        "The machine slowed down after the first two of five runs; predicted times, corrected job by "
        "job, then left less room.",
    ),
)
_BATCHLLM = (
    Said(
        "saving_ratio", "prompt tokens saved by sharing, the paper's kind of job", "more", "maximum"
    ),
    Said(
        "saving_ratio_lru",
        "prompt tokens saved by an LRU cache of the whole pool, in arrival order",
    ),
    Said(
        "speedup_over_prefix_cache_min",
        "micro-benchmarks: speed over prefix cache and chunked prefill, least",
        "more",
        "paper",
        "Where few of a request's tokens are shared, there is not as much to save.",
    ),
    Said(
        "speedup_over_prefix_cache_max",
        "micro-benchmarks: speed over prefix cache and chunked prefill, most",
        "more",
        "paper",
    ),
    Said("case_1_speedup", "its first case", "more", "paper"),
    Said(
        "case_2_speedup",
        "its second case",
        "more",
        "paper",
        "Its output lengths are not published.",
    ),
    Said("batching_and_order_speedup", "batching by tokens, and order", "more", "paper"),
    Said(
        "cool_down_free_time_cut",
        "cut of the time until the last prompt is done",
        "more",
        "paper",
        "",
    ),
)
_BATCHLLM_ENGINE = (
    Said(
        "engine_speedup_over_prefix_cache_min",
        "speed over arrival order, least of six shapes",
        "more",
        "goal",
        "In that shape few tokens of a request are shared.",
    ),
    Said("engine_speedup_over_prefix_cache_max", "speed over arrival order, most", "more", "goal"),
    Said("different_answers", "answers that differ between the orders", "less"),
    Said("near_ties", "near-ties among them that were excused"),
    Said("gsm8k_different_answers", "GSM8K: answers that differ between six orders", "less"),
    Said("gsm8k_near_ties", "GSM8K: near-ties that were excused"),
)
_BLENDSERVE = (
    Said(
        "throughput_over_best_rival",
        "throughput over the best rival in any lane, mean of four traces",
        "more",
        "goal",
    ),
    Said(
        "throughput_over_best_rival_min",
        "throughput over the best rival, least of four traces",
        "more",
        "goal",
    ),
    Said(
        "throughput_over_dfs_in_any_lane",
        "throughput over DFS, each in its best lane, mean of four traces",
        "more",
        "paper",
        "The paper's DFS runs in the paper's one lane; ours in the lane that suits it best.",
    ),
    Said(
        "share_of_optimum",
        "share of the maximum by the cost model",
        "more",
        "goal",
        "Output lengths are learnt during the run.",
    ),
    Said(
        "share_of_ideal", "share of the ideal: the larger one of all compute and all memory seconds"
    ),
    Said("prefix_sharing_of_optimum", "share of all prefix sharing that is kept", "more", "paper"),
    Said("overlap_over_mixed", "the blend on SM partitions over the blend in mixed jobs"),
    Said("grid_over_best_rival", "throughput over the best of DFS and random, mean of a grid"),
    Said(
        "grid_over_dfs_in_any_lane",
        "throughput over DFS, each in its best lane, mean of a grid",
        "more",
        "paper",
        "On the grid one very long answer takes most of some runs.",
    ),
)
_MULTI_MODEL = (
    Said(
        "throughput_over_one_after_other",
        "two models' jobs at once over one after the other, mean",
        "more",
    ),
    Said(
        "throughput_over_one_after_other_min",
        "two jobs at once over one after the other, least",
        "more",
    ),
    Said(
        "throughput_over_one_after_other_max",
        "two jobs at once over one after the other, most",
        "more",
        "bound",
        "The bound is what the cost model permits, compute and memory overlapping without loss.",
    ),
    Said("throughput_over_unaware", "over jobs that are planned independently", "more"),
    Said(
        "share_of_optimum",
        "share of the maximum by the cost model",
        "more",
        "maximum",
        "Steps of finite size do not overlap without loss.",
    ),
)
_DENSE = (
    Said(
        "time_cut_over_static_batch_4_long",
        "cut of the time, batch 4, mixed lengths",
        "more",
        "paper",
    ),
    Said(
        "time_cut_over_static_batch_8_long",
        "cut of the time, batch 8, mixed lengths",
        "more",
        "paper",
    ),
    Said(
        "speedup_over_static_batch_2",
        "speed, batch 2, short queries",
        "more",
        "paper",
        "These lengths permit hardly more: the steps cannot become fewer.",
    ),
    *(
        Said(
            f"speedup_over_static_batch_{size}",
            f"speed, batch {size}, short queries",
            "more",
            "paper",
        )
        for size in (4, 6, 8, 10)
    ),
)
_PLACEMENT = (
    Said(
        "compat_worst_over_best_known",
        "score by MuxServe's own rules over the best known, worst of its inputs",
        "more",
    ),
    Said("compat_slowest_s", "slowest of these plans", "less"),
    Said("bound_gap_worst", "distance to a proven bound at the recorded rates, worst", "less"),
    Said("exact_gap_worst", "the same with `--method exact`", "less"),
    Said(
        "bound_gap_worst_overloaded", "the same at four times the rates (the bound is loose there)"
    ),
    Said("exact_gap_worst_overloaded", "the same with `--method exact`"),
    Said("seconds_100_models", "planning time, 100 models on 128 GPUs", "less"),
    Said("seconds_1000_models", "planning time, 1,000 models on 1,024 GPUs", "less"),
)
_COST = (
    Said(
        "holdout_median_abs_error",
        "predicted seconds, held-out cells of the A100 profile: median error",
        "less",
        "linear interpolation",
    ),
    Said("holdout_p90_abs_error", "the same, 90th percentile", "less", "linear interpolation"),
    Said(
        "leave_one_model_out_median_abs_error", "a model that was left out of the fit: median error"
    ),
    Said("leave_one_model_out_p90_abs_error", "the same, 90th percentile"),
    Said("roofline_median_abs_error", "roofline without measurements: median error"),
    Said("roofline_p90_abs_error", "the same, 90th percentile"),
)
_SCHEDULER_HYBRID = tuple(
    Said(
        f"hybrid_{lane}_step_us_p50_at_{count}",
        f"`hybrid`, {words}, {count} requests",
        "less" if count == 512 else "",
        "goal",
        "",
    )
    for lane, words in (
        ("adbs_8", "`adbs`, 8 models"),
        ("mixed_8", "`mixed`, 8 models"),
        ("mixed_1", "`mixed`, 1 model"),
    )
    for count in (512, 4096)
)
_ALL: Mapping[str, tuple[Said, ...]] = {
    "muxserve/thirty_models": (
        Said("in_time_at_lowest_rate", "requests in time at the lowest rate", "more", "the better of the two", "Jobs side by side make single requests a little slower."),
        Said("in_time_at_highest_rate", "requests in time at the highest rate", "more", "the better of the two"),
        Said("in_time_per_s_over_one_model_a_gpu", "most requests in time per second, over one model a GPU", "more"),
        Said("in_time_per_s_over_time_sharing", "most requests in time per second, over time sharing", "more"),
    ),
    "muxserve/evaluation": _MUXSERVE,
    "muxserve/ablations": _ABLATIONS,
    "muxserve/fidelity": _FIDELITY,
    "hybrid/bros": _BROS,
    "hybrid/engine": _BROS_ENGINE,
    "offline/batchllm": _BATCHLLM,
    "offline/engine": _BATCHLLM_ENGINE,
    "offline/blendserve": _BLENDSERVE,
    "offline/multi_model": _MULTI_MODEL,
    "offline/savings": (
        Said("saving_of_optimum_min", "prompt tokens saved over the most that can be, worst job"),
    ),
    "dense": _DENSE,
    "placement": _PLACEMENT,
    "cost_model": _COST,
    "scheduler": (
        Said("step_us_p50_at_100", "a scheduler step, 100 running sequences, median"),
        Said("step_us_p50_at_1000", "1,000 sequences", "less"),
        Said("step_us_p50_at_10000", "10,000 sequences"),
    ),
    "scheduler_hybrid": _SCHEDULER_HYBRID,
    "simulator": (
        Said("step_exact_x_real_time", "speed over real time at the slowest point", "more", "goal",
             "Under load every step changes a decision."),
        Said("plain_x_real_time", "speed with the scheduler called after every step"),
        Said("worst_metric_difference", "difference of metrics between the two", "less"),
    ),
    "plan_holds": (
        Said("plans_that_hold", "plans that promise all rates and keep them when simulated", "more"),
        Said("plans_that_promise_all", "plans that promise all rates"),
        Said("served_median_abs_error", "plans that promise less: error of served requests/s, median", "less"),
        Said("plans_that_say_less", "plans that promise less"),
    ),
    "engine_fidelity": (
        Said("throughput_median_abs_error", "error of simulated requests/s, median of the cases", "less"),
        Said("ttft_p50_median_abs_error", "error of the median first token", "less"),
        Said("ttft_p95_median_abs_error", "error of its 95th percentile", "less"),
    ),
    "residency": (
        Said("gpus_saved_over_static", "GPUs that static placement needs over ours", "more", "goal"),
        Said("gpus_saved_over_swap", "GPUs that swapping needs over ours", "more", "swap"),
        Said("planned_in_time", "requests in time on as many GPUs as ours needs, laid out by the planner", "more", "goal"),
        Said("in_time_over_swap", "requests in time over swapping's, on the same GPUs", "more", "swap"),
        Said("late_of_swap_over_ours", "late requests of swapping over ours, there", "more"),
        Said("most_in_time_over_swap", "requests in time over swapping's, where it is most as loads rise", "more", "goal",
             "Swapping answers most requests in time at far higher rates too: popular models have a GPU of their own there, which bounds the ratio."),
        Said("load_over_swap", "highest load with enough in time over swapping's, on the same GPUs", "more"),
        Said("gpus_saved_over_static_at_10x", "GPUs that static placement needs over ours, at ten times the rates", "more", "goal"),
        Said("gpus_saved_over_swap_at_10x", "GPUs that swapping needs over ours, there", "more", "swap"),
        Said("planned_in_time_at_10x", "requests in time on as many GPUs as ours needs there, laid out by the planner", "more", "goal"),
        Said("late_cut_by_foresight", "late requests without wakes ahead over those with them, on one GPU less", "more", "none ahead"),
        Said("foresight_hit_rate", "part of the wakes ahead that were used"),
        Said("late_cut_by_foresight_by_timers", "late requests without wakes ahead over those with them, timers asking every second model", "more", "none ahead"),
        Said("foresight_hit_rate_by_timers", "part of the wakes ahead that were used, there"),
        Said("wake_over_possible", "CPU: rate of a wake over the rate at which linears are read and packed", "more", "goal"),
        Said("wake_over_memcpy", "CPU: rate of a wake over that of a copy in memory", "more"),
        Said("engine_in_time_over_swap", "CPU: requests in time over swapping's, where it begins to fail", "more", "goal"),
        Said("engine_p99_cut_over_swap", "CPU: 99th percentile of swapping's first tokens over ours, there", "more"),
        Said("engine_in_time_over_processes", "CPU: requests in time over those of a process a model, there", "more", "goal"),
        Said("requests_lost", "CPU: requests lost while processes are killed", "less"),
        Said("throughput_beside_sleepers", "CPU: tokens/s of two models beside eight parked ones over those without", "more", "goal"),
        Said("tokens_per_cpu_s_beside_sleepers", "CPU: the same by processor time", "more", "goal"),
        Said("sleeper_told_mib", "CPU: what a unit says that it keeps of a parked model", "less"),
        Said("sleeper_owner_mib", "CPU: memory of the pool's owner for a parked model", "less"),
    ),
    "decision_trace": (
        Said("decision_files_priority", "files that one decision runs through, packing `priority`"),
        Said("decision_depth_priority", "depth of calls"),
        Said("decision_files_hybrid", "files, packing `hybrid`"),
        Said("decision_depth_hybrid", "depth of calls"),
    ),
    "compile_kernels": (
        Said("kernels_compiled", "kernels compiled for sm_80, sm_90 and sm_100", "more"),
        Said("kernels_with_stack", "of these with a stack", "less"),
        Said("launches_per_layer", "launches per layer of a decode step", "less"),
        Said("capture_streams_per_place", "streams that a captured step uses", "less"),
    ),
    "batch": (
        Said("batch_tokens_per_s_over_fcfs", "tokens/s in the order `auto` over `fcfs`, planning included", "more"),
        Said("estimate_error_at_half", "error of the remaining time at half of the lines", "less"),
        Said("results_lost", "results lost by `kill -9` at random times", "less"),
        Said("results_doubled", "results that came twice", "less"),
        Said("interactive_p99_ttft_s", "interactive streams beside it: p99 of the first token", "less", "target"),
        Said("interactive_p99_tpot_s", "interactive streams beside it: p99 of each further token", "less", "target"),
    ),
    "cluster": (
        Said("stall_s_link_cut", "longest stall of a stream, link of a worker cut", "less"),
        Said("stall_s_host_killed", "worker killed", "less"),
        Said("stall_s_head_killed", "head killed, its state in Redis: streams of other hosts", "less"),
        Said("stall_s_head_restored", "the same while it comes back", "less"),
        Said("stall_s_upgrade", "another version rolled out, four units replaced", "less"),
        Said("move_pause_s", "plan changed under load, three units replaced"),
        Said("tokens_lost", "tokens lost", "less"),
        Said("tokens_repeated", "tokens repeated", "less"),
    ),
    "attack": (
        Said("streams_lost", "streams that were not whole or not as expected under attack", "less"),
        Said("p99_ratio_under_attack", "P99 of the time between two tokens under attack, over that beside harmless traffic", "less"),
    ),
    "owner_loss": (
        Said("stall_s_p50", "a killed memory owner: stall of a stream, median"),
        Said("stall_s_p50_without_a_spare", "the same without a spare owner"),
        Said("longest_stall_s", "longest stall", "less", "without a spare"),
    ),
    "serving": tuple(
        Said(f"tokens_per_s_over_{name}_at_{count}", f"{words}, {count} concurrent", "more", goal)
        for name, words, goal in (
            ("hf_best", "HTTP over the better of transformers' batchings", "transformers"),
            ("openvino", "HTTP over OpenVINO GenAI in process, fp32", "OpenVINO"),
        )
        for count in (1, 8, 32)
    ) + tuple(
        Said(f"tokens_per_s_in_process_{name}_at_{count}", f"{words}, {count} concurrent", "more", "OpenVINO")
        for name, words in (
            ("over_openvino", "in process over OpenVINO GenAI, fp32"),
            ("bf16_over_openvino_default", "in process in bf16 over what OpenVINO chooses by itself"),
        )
        for count in (1, 8, 32)
    ),
    "several_models": (
        Said("in_time_over_best_peer", "requests in time of all rates, over the best of OpenVINO's three ways", "more", "goal",
             "One process that steps its pipelines in turn is the strongest. A step of ours with two threads takes longer than OpenVINO's, and near saturation that counts several times. Whether jobs share the cores is judged by measuring both ways one after the other, which a machine whose speed drifts misleads."),
        Said("tokens_per_s_over_best_peer", "tokens/s at the highest rate, over the best of them", "more", "OpenVINO"),
        Said("share_in_time", "requests in time"),
        Said("requests_lost", "requests that were not answered whole", "less"),
    ),
    "mixed_load": (
        Said("worst_class_in_time", "requests in time at load 1, of the class with the fewest", "more", "goal"),
        Said("in_time_over_best_other_policy", "requests in time of all loads, over the best other policy", "more", "that policy",
             "At twice the load mixed jobs keep most chats in time, and ADBS, with a judge that should find that, does not: what it measures is the seconds of jobs, not who is late."),
        Said("requests_lost", "requests that were not answered whole", "less"),
    ),
    "engine_overhead": tuple(
        Said(f"step_over_bare_forward_at_{count}", f"a decode step over its forward pass alone, batch {count}")
        for count in (1, 8, 32)
    ),
    "http": (
        Said("http_tokens_per_s_32", "tokens/s streamed, one SSE event per token, 32 streams, an engine that only counts", "more"),
        Said("added_ttft_ms_p50", "time added to the first token, 1 stream, median"),
        Said("added_ttft_ms_p50_32", "32 streams at once"),
        Said("added_ttft_ms_p50_256", "256 streams at once"),
    ),
    "adapters": (
        Said("throughput_with_32_adapters", "tokens/s of 32 requests, each of an adapter of its own, over 32 of none", "more", "goal"),
        Said("different_tokens", "tokens that differ from the merged models'", "less", "merged models"),
    ),
    "constrained": (
        Said("step_slowdown_64_rows", "a decode step whose rows all have constraints, over one without", "less", "goal"),
        Said("invalid_outputs", "outputs of random schemas that do not follow them", "less", "goal"),
        Said("others_ttft_p99_ratio", "P99 of others' first tokens while large schemas compile, over alone", "less", "goal",
             "Two cores have the two workers, the schemas' own prompts and what is compiled, at the lowest priority; as many requests whose schemas are small, which the record has as `small`, cost a part of it."),
    ),
    "prefix_tree": (
        Said("plan_seconds_3000", "plan of a job of 3,000 requests", "less"),
        Said("plan_seconds_400000", "plan of a job of 400,000 requests", "less"),
        Said("peak_rss_bytes", "memory for it, at the peak", "less"),
    ),
}  # fmt: skip
SAID: Mapping[str, tuple[Said, ...]] = {
    name: tuple(replace(each, unit="share") if each.name in _SHARES else each for each in said)
    for name, said in _ALL.items()
}
