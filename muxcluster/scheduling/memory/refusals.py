"""Requests that a unit can never run, which are rejected at once."""

from muxcluster.core.events import Rejected
from muxcluster.core.request import Request
from muxcluster.scheduling.state.model import ModelState


def unknown_model(request: Request) -> Rejected:
    """Reject a request for a model that the unit does not serve."""
    return Rejected(request.request_id, "model_not_found", f"no model {request.model!r} here")


def refusal(request: Request, model: ModelState, carry_blocks: int) -> Rejected | None:
    """Return why `request` can never end here, or None.

    carry_blocks: blocks that one sequence of the model can always get: its quota floor, or the pool
    where no quotas are in force. Prompt and max_tokens must fit into them together, or the request
    could be preempted for ever.
    """
    num_prompt = len(request.prompt_tokens)
    if num_prompt == 0:
        return Rejected(request.request_id, "invalid_value", "the prompt has no tokens")
    if num_prompt > model.spec.max_model_len:
        message = f"{num_prompt} prompt tokens exceed the context of {model.spec.max_model_len}"
        return Rejected(request.request_id, "context_length_exceeded", message)
    # The last token is never computed and needs no block.
    needed = model.blocks(max(num_prompt, model.max_total(request) - 1))
    if needed > carry_blocks:
        tokens = carry_blocks // model.blocks_per_column * model.block_tokens
        message = (
            f"prompt and max_tokens exceed the {tokens} tokens that memory has for one request"
        )
        return Rejected(request.request_id, "context_length_exceeded", message)
    return None
