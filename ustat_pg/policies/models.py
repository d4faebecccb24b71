"""Policies as differentiable functions of a flat parameter vector, for the torch engines.

A policy writes an output token by token, and a bandit's policy writes one token. A :class:`Model` gives the
log-probabilities of the next token after each prefix, and everything else follows from these. Its methods
take θ (d,) and do not branch on values, so ``torch.func`` can differentiate them and run many stacked
parameters at once. This module needs torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..validation import InputError
from . import (
    ArmLinearSoftmax,
    OutputSpace,
    PrefixSoftmax,
    SharedLinearSoftmax,
    SoftmaxPolicy,
    TabularSoftmax,
    TabulatedPolicy,
)

try:
    import torch
    from torch import Tensor
    from torch.func import functional_call
    from torch.nn import functional
except ImportError:
    raise InputError("torch models need torch: pip install 'ustat_pg[torch]'") from None

from .network import device_of
from .transformer import TransformerPolicy


class Model(ABC):
    """A policy on a device, as functions of θ.

    A batch may have prompts of different lengths, in any order.
    """

    def __init__(self, policy: SoftmaxPolicy, space: OutputSpace, device: torch.device) -> None:
        self.policy, self.space, self.device = policy, space, device

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.policy.d

    @property
    @abstractmethod
    def activity(self) -> int:
        """The approximate number of values that a gradient keeps for each output."""

    def theta(self) -> Tensor:
        """The policy's own parameters, a new tensor (d,)."""
        return self.floats(self.policy.theta)

    def floats(self, array: ArrayLike) -> Tensor:
        """A float64 copy of the array on the device: torch has no read-only tensors."""
        return torch.tensor(np.array(array), dtype=torch.float64, device=self.device)

    def integers(self, array: ArrayLike) -> Tensor:
        """A copy of the array as int64 on the device."""
        return torch.tensor(np.array(array), dtype=torch.int64, device=self.device)

    @abstractmethod
    def choice_log_probs(self, theta: Tensor, contexts: Tensor, tokens: Tensor) -> Tensor:
        """log π(· | prompt, prefix) before each of the tokens (n, l), by teacher forcing.

        Outputs are padded with -1; after an output's end they are those of some prefix.

        Returns:
            (n, l, A).
        """

    def log_prob(self, theta: Tensor, contexts: Tensor, outputs: Tensor) -> Tensor:
        """log π(y | x) of outputs (n, l) padded with -1: (n,)."""
        choices = self.choice_log_probs(theta, contexts, outputs)
        taken = choices.gather(-1, outputs.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return torch.where(outputs >= 0, taken, torch.zeros_like(taken)).sum(-1)

    @cached_property
    def outputs(self) -> Tensor:
        """The tokens of every output, (K, l), padded with -1."""
        return self.integers(self.space.outputs)

    def all_log_probs(self, theta: Tensor, contexts: Tensor) -> Tensor:
        """log π(y | x) of every output: (n, K)."""
        n, count = len(contexts), self.space.count
        rows = contexts.repeat_interleave(count), self.outputs.repeat(n, 1)
        return self.log_prob(theta, *rows).reshape(n, count)


class _Transformer(Model):
    """Sequences are padded at their end, which causal attention does not see from earlier positions."""

    policy: TransformerPolicy

    def __init__(self, policy: TransformerPolicy, device: torch.device) -> None:
        super().__init__(policy, policy.space, device)
        self._lengths = self.integers([len(prompt) for prompt in policy.prompts])
        self._longest = max(map(len, policy.prompts))
        heads = np.zeros((len(policy.prompts), self._longest + 1), dtype=np.int64)
        for row, prompt in zip(heads, policy.prompts, strict=True):
            row[: len(prompt) + 1] = [policy.network.begin, *prompt]
        self._heads = self.integers(heads)

    @property
    def activity(self) -> int:
        shape, positions = self.policy.shape, self._longest + self.space.length
        return 40 * shape.layers * positions * (shape.width + shape.heads * positions // 4)

    def _read(self, contexts: Tensor, written: Tensor) -> Tensor:
        """Begin, prompt and tokens written (n, t), left-aligned: (n, 1 + longest + t)."""
        heads, count = self._heads[contexts], written.shape[1]
        body = written.clamp(min=0)
        if not count:
            return heads
        places = torch.arange(heads.shape[1] + count, device=self.device)
        after = places - 1 - self._lengths[contexts][:, None]
        rest = body.gather(1, after.clamp(0, count - 1))
        return torch.where(after < 0, functional.pad(heads, (0, count)), rest)

    def _logits(self, theta: Tensor, sequences: Tensor) -> Tensor:
        state = self.policy.unflatten(theta)
        logits: Tensor = functional_call(self.policy.network, state, (sequences,))
        return logits

    def choice_log_probs(self, theta: Tensor, contexts: Tensor, tokens: Tensor) -> Tensor:
        logits = self._logits(theta, self._read(contexts, tokens[:, :-1]))
        places = self._lengths[contexts][:, None] + torch.arange(
            self.space.length, device=self.device
        )
        chosen = logits.gather(1, places[..., None].expand(-1, -1, self.space.symbols))
        return functional.log_softmax(chosen, dim=-1)


class _Prefix(Model):
    policy: PrefixSoftmax

    def __init__(self, policy: PrefixSoftmax, device: torch.device) -> None:
        super().__init__(policy, policy.space, device)
        lengths = self.space.vocabulary ** np.arange(self.space.length - 1)
        self._offsets = self.integers(np.cumsum([0, *lengths]))

    @property
    def activity(self) -> int:
        return 4 * self.space.length * self.space.symbols

    def choice_log_probs(self, theta: Tensor, contexts: Tensor, tokens: Tensor) -> Tensor:
        v = self.space.vocabulary
        number = torch.zeros_like(contexts)
        numbers = [number]
        for t in range(self.space.length - 1):
            # Positions after the end are read as some prefix.
            number = number * v + tokens[:, t].clamp(0, v - 1)
            numbers.append(number)
        nodes = torch.stack(numbers, dim=-1) + self._offsets
        if self.policy.contexts is None:
            nodes = nodes + contexts[:, None] * self.space.prefixes
        return functional.log_softmax(theta.reshape(-1, self.space.symbols)[nodes], dim=-1)


class _Bandit(Model):
    """Policies of one token with logits that are linear in θ, plus an offset and bends."""

    def __init__(self, policy: SoftmaxPolicy, device: torch.device) -> None:
        contexts, arms = policy.logits.shape
        super().__init__(policy, OutputSpace(arms, 1), device)
        offset, bends = np.zeros((contexts, arms)), policy.bends
        if isinstance(policy, ArmLinearSoftmax):
            features, offset = policy.features, offset if policy.offset is None else policy.offset
        elif isinstance(policy, SharedLinearSoftmax):
            features = np.einsum("xm,kl->xklm", policy.features, np.eye(arms))
        else:
            features = np.eye(contexts * arms)
        self._features = self.floats(np.reshape(features, (contexts, arms, -1)))
        self._offset = self.floats(offset)
        self._bends = None if bends is None else self.floats(bends)

    @property
    def activity(self) -> int:
        return (4 + self.d) * self.space.symbols

    def choice_log_probs(self, theta: Tensor, contexts: Tensor, tokens: Tensor) -> Tensor:
        logits = self._features[contexts] @ theta + self._offset[contexts]
        if self._bends is not None:
            logits = logits - self._bends[contexts] @ theta**2 / 2
        return functional.log_softmax(logits, dim=-1)[:, None]


def differentiable(policy: SoftmaxPolicy) -> SoftmaxPolicy:
    """The policy with differentiable parameters: itself, or the source of its tables."""
    if isinstance(policy, TabulatedPolicy):
        if policy.source is None:
            raise InputError(
                "a table of probabilities and scores has no parameters to differentiate: give the "
                "policy itself, or memory enough for a table of its scores"
            )
        source = policy.source
        return source if policy.parameters is None else source.with_theta(policy.parameters)
    if not isinstance(policy, tuple(_KINDS)):
        names = ", ".join(kind.__name__ for kind in _KINDS)
        raise InputError(f"no torch model of a {type(policy).__name__}: there is one of {names}")
    return policy


_KINDS: dict[type[SoftmaxPolicy], Callable[[Any, torch.device], Model]] = {
    TransformerPolicy: _Transformer,
    PrefixSoftmax: _Prefix,
    TabularSoftmax: _Bandit,
    SharedLinearSoftmax: _Bandit,
    ArmLinearSoftmax: _Bandit,
}


def model_of(policy: SoftmaxPolicy, device: str = "cpu") -> Model:
    """The policy as a function of its parameters.

    >>> model = model_of(TabularSoftmax(np.log([[0.25, 0.75]])))
    >>> model.all_log_probs(model.theta(), torch.tensor([0])).exp()
    tensor([[0.2500, 0.7500]], dtype=torch.float64)
    """
    model, where = differentiable(policy), device_of(device)
    return next(make for kind, make in _KINDS.items() if isinstance(model, kind))(model, where)
