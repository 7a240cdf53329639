"""Checks fields outside the schemas: harmless ones pass, unsupported ones are refused."""

from collections.abc import Iterable, Mapping

from muxcluster.core.errors import UnsupportedParameter
from muxcluster.core.inputs.clip import plain

# known fields that never change the output here
HARMLESS = frozenset(
    {
        "user",
        "metadata",
        "cache_control",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "prediction",
        "parallel_tool_calls",
        "session_id",
        "stream_interval",
    }
)

# known fields we do not honour, with the values (beside null) at which they change nothing
REFUSED: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "container": (),
    "context_management": (),
    "conversation": (),
    "custom_logit_processor": (),
    "documents": ([],),
    "early_stopping": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    # the grammar engine is llguidance
    "guided_decoding_backend": ("auto", "guidance"),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logit_processors": ([],),
    "logits_processors": ([],),
    "logprob_token_ids": ([],),
    "lora_path": (),
    "mcp_servers": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "no_stop_trim": (False,),
    "prompt_adapter": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "repetition_detection": (),
    "return_hidden_states": (False,),
    "return_prompt_text": (False,),
    "separate_reasoning": (False,),
    "session_params": (),
    "spaces_between_special_tokens": (True,),
    "stop_regex": ([],),
    "store": (False,),
    "stream_reasoning": (True,),
    "suffix": ("",),
    "thinking_token_budget": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncation_side": (),
    "use_beam_search": (False,),
    "verbosity": (),
    "vllm_xargs": ({},),
    "web_search_options": (),
}


def check_outside_fields(
    data: Mapping[str, object], names: Iterable[str], *, lenient: bool
) -> None:
    """Check the fields `names` of `data`, which its schema does not have.

    Raises UnsupportedParameter for a known field with an effect we would drop, and for an
    unknown one unless `lenient`.
    """
    for name in names:
        value = data[name]
        if value is None or name in HARMLESS:
            continue
        if name == "best_of":
            _check_best_of(value, data.get("n"))
        elif name in REFUSED:
            if not any(value == neutral for neutral in REFUSED[name]):
                raise UnsupportedParameter(f"{name} is not supported by this server", name)
        elif not lenient:
            raise UnsupportedParameter(f"unknown field {plain(name)}", plain(name))


def _check_best_of(value: object, n: object) -> None:
    """`best_of` equal to `n` asks for nothing beyond `n`."""
    if value != (1 if n is None else n):
        raise UnsupportedParameter("best_of other than n is not supported", "best_of")
