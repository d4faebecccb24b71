"""Squared norms of the scores of a torch module's outputs: what the norm-weighted baseline needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..validation import InputError, integer

Array = Any


def _log_softmax(out: Array, output: Array, mask: Array | None) -> Array:
    """Σ log softmax(out)[output] over the last axis' classes: of one choice, or of a row of tokens."""
    logs = out.log_softmax(dim=-1).gather(-1, output[..., None])[..., 0]
    return (logs if mask is None else logs * mask).sum()


def squared_score_norms(
    model: Any,
    inputs: Array,
    outputs: Array,
    *,
    mask: Array | None = None,
    log_prob: Callable[[Array, Array], Array] | None = None,
    chunk_size: int | None = None,
) -> Array:
    """‖sᵢ‖², sᵢ = ∇ log π(yᵢ | xᵢ), of the outputs of a plain ``torch.nn.Module``, one for each.

    By ``torch.func``: the gradient of each example apart, in one vectorised backward pass, of which the
    squared norm alone is kept. :func:`norm_weighted` takes them. Language models have
    :class:`ustat_pg.llm.scores.Scores` in its place, which never holds a gradient.

    Arguments:
        model: policy; called with a batch of one input, in its own mode. Parameters that do not
            require a gradient do not count.
        inputs: x, (n, ...).
        outputs: y, (n, ...): classes (n,), or tokens (n, T), of logits (1, K) or (1, T, K), unless
            ``log_prob`` says otherwise.
        mask: 1 where an output has a token and 0 past its end, (n, T).
        log_prob: called with what the model returns for one input, its batch axis taken off, and the
            output; returns log π(y | x), a number.
        chunk_size: examples whose gradients are held at a time; all unless given.

    Returns:
        (n,), off the graph.

    Raises:
        InputError: no torch, no module, no parameter to differentiate, batches of different lengths, or
            a model that ``torch.func`` cannot take example by example (dropout or batch normalisation
            in training mode).

    >>> import torch
    >>> policy = torch.nn.Linear(2, 3)
    >>> _ = torch.nn.init.zeros_(policy.weight), torch.nn.init.zeros_(policy.bias)
    >>> squared_score_norms(policy, torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    tensor([4.])
    """
    try:
        import torch
        from torch.func import functional_call, grad, vmap
    except ImportError:
        raise InputError("squared_score_norms needs torch: pip install 'ustat_pg[torch]'") from None
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model is a {type(model).__name__}: it must be a torch.nn.Module")
    if log_prob is not None and mask is not None:
        raise InputError("mask is for log-probabilities of tokens: a log_prob of your own has none")
    for name, batch in (("outputs", outputs), ("mask", mask)):
        if batch is not None and len(batch) != len(inputs):
            raise InputError(
                f"{name} have {len(batch)} rows and inputs {len(inputs)}: one for each"
            )
    moving = {k: v.detach() for k, v in model.named_parameters() if v.requires_grad}
    if not moving:
        raise InputError("model has no parameter that requires a gradient")
    still = {k: v.detach() for k, v in model.named_parameters() if not v.requires_grad}
    still |= {k: v.detach() for k, v in model.named_buffers()}
    size = None if chunk_size is None else integer("chunk size", chunk_size)

    def log_of_one(parameters: Any, x: Array, y: Array, inside: Array | None) -> Array:
        out = functional_call(model, (parameters, still), (x[None],))[0]
        return _log_softmax(out, y, inside) if log_prob is None else log_prob(out, y)

    def of_one(x: Array, y: Array, inside: Array | None) -> Array:
        score = grad(log_of_one)(moving, x, y, inside)
        return sum(each.square().sum() for each in score.values())

    axes = (0, 0, None if mask is None else 0)
    try:
        return vmap(of_one, in_dims=axes, chunk_size=size)(inputs, outputs, mask)
    except RuntimeError as error:
        if model.training and ("random" in str(error) or "mutate" in str(error)):
            raise InputError(
                f"{type(model).__name__} draws or mixes examples in training mode: call model.eval() "
                "first"
            ) from error
        raise
