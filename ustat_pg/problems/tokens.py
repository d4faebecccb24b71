"""Token problems: a set of prompts, all outputs over a vocabulary, and a verifier as reward.

The verifier gets a prompt and an output and returns a reward. With a policy the problem is a softmax bandit
with the outputs as arms, so all moments, engines and predictions apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial, reduce
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from ..moments.record import ContextMatrices, TokenOutcomes
from ..policies import OutputSpace, SoftmaxPolicy
from ..policies.outputs import PAD, require_prompts
from ..validation import (
    Array,
    InputError,
    field,
    finite_array,
    frozen,
    integer,
    probabilities,
    record,
)
from .softmax_bandit import SoftmaxBandit

Tokens = tuple[int, ...]
Verifier = Callable[[Tokens, Tokens], float]

_MATRIX_BYTES = 2**29
"""The largest (d, d) moment matrix, in bytes."""


@record()
class TokenBandit(SoftmaxBandit):
    """A softmax bandit with the outputs of a token policy as arms; :meth:`TokenProblem.at` makes it."""

    def _matrices(self) -> Iterator[ContextMatrices]:
        if 8 * self.d**2 > _MATRIX_BYTES:
            raise InputError(
                f"a moment matrix of {self.d} parameters needs {8 * self.d**2 / 2**30:.1f} GiB: at "
                f"most {_MATRIX_BYTES / 2**30:g} GiB is allowed; take a smaller policy"
            )
        return super()._matrices()

    def arrays(self) -> dict[str, Array]:
        """The arrays that define policy, prompts and rewards, without computed probabilities."""
        named = super().arrays()
        # If rewards are certain, only files need their probabilities.
        if not self.policy.in_files and self.reward_probs.shape[-1] == 1:
            del named["reward_probs"]
        return named


@record()
class TokenProblem:
    """Prompts, the possible outputs, and a verifier as reward.

    Arguments:
        space: the outputs.
        prompts: sequences of tokens, numbers >= 0; those below v belong to the vocabulary.
        verifier: (prompt, output without the end token) to the reward, a finite number.
        probs: ρ, one per prompt; None for equal ones.
        name: its name in results.

    Raises:
        InputError: there are no prompts, tokens are not whole numbers >= 0, probabilities do not match, or a
            reward is not finite.

    >>> problem = TokenProblem(OutputSpace(3, 2), [(0,), (2,)], lambda x, y: float(sum(y) == x[0]))
    >>> problem.rewards.sum(axis=1), problem.optimum
    (array([1., 3.]), 1.0)
    """

    space: OutputSpace
    prompts: tuple[Tokens, ...] = field(require_prompts)
    verifier: Verifier
    probs: Array | None = field(probabilities, ndim=1, default=None)
    name: str = "tokens"

    def __attrs_post_init__(self) -> None:
        count = self.contexts
        probs = frozen(np.full(count, 1 / count)) if self.probs is None else self.probs
        if len(probs) != count:
            raise InputError(f"probs has {len(probs)} entries: there are {count} prompts")
        object.__setattr__(self, "probs", probs)

    @property
    def contexts(self) -> int:
        """X, the number of prompts."""
        return len(self.prompts)

    @cached_property
    def rewards(self) -> Array:
        """z(x, k), the verifier's reward for each output, (X, K)."""
        answers = [self.space.content(k) for k in range(self.space.count)]
        table = [[self.verifier(x, y) for y in answers] for x in self.prompts]
        return finite_array("rewards", table, 2)

    @property
    def optimum(self) -> float:
        """J* = Σ_x ρ(x) max_k z(x, k), the return of the best answer to each prompt."""
        return float(np.asarray(self.probs) @ self.rewards.max(axis=1))

    def at(self, policy: SoftmaxPolicy, memory: int = 2**28) -> TokenBandit:
        """The bandit of a policy at its parameters.

        If the policy can put its scores in a table, it does so for the engines.

        Raises:
            InputError: the policy's prompts or outputs differ from the problem's, or tables exceed the
                memory.
        """
        # This avoids the pass of a network that logits would need.
        for name, theirs, ours in (
            ("outputs", policy.space, self.space),
            ("prompts", policy.prompts, self.prompts),
        ):
            if theirs is not None and theirs != ours:
                raise InputError(f"the policy's {name} are {theirs}: the problem's are {ours}")
        shape = (self.contexts, self.space.count)
        if (policy.space is None or policy.prompts is None) and policy.logits.shape != shape:
            raise InputError(
                f"the policy has {policy.logits.shape[0]} prompts and {policy.logits.shape[1]} "
                f"outputs: the problem has {shape[0]} and {shape[1]}"
            )
        return self.bandit(policy.tabulated(memory))

    def bandit(self, policy: SoftmaxPolicy) -> TokenBandit:
        """The bandit of a policy, without a table of scores."""
        rewards = self.rewards[:, :, None]
        return TokenBandit(policy, np.asarray(self.probs), rewards, np.ones_like(rewards))

    def gap(self, bandit: SoftmaxBandit) -> float:
        """J* - J, the gap to the best policy, which need not be in the policy's family."""
        return self.optimum - bandit.objective()


# Verifiers are partial functions, not closures, because problems must be picklable.


def _modular_sum(modulus: int, graded: bool, prompt: Tokens, output: Tokens) -> float:
    off = (sum(output) - sum(prompt)) % modulus
    if not graded:
        return float(off == 0)
    return 1.0 - min(off, modulus - off) / max(modulus // 2, 1)


def modular_sum(
    modulus: int,
    length: int,
    *,
    end: bool = False,
    graded: bool = False,
    prompts: Iterable[Sequence[int]] | None = None,
) -> TokenProblem:
    """The problem of outputs with the same sum of digits as the prompt, modulo m.

    Arguments:
        modulus: m, which is also the size of the vocabulary.
        length: largest number of tokens in an output.
        end: whether outputs may be shorter.
        graded: reward 1 minus the relative distance on the circle, instead of right or wrong.
        prompts: sequences of digits; None for each residue once.

    >>> modular_sum(3, 2).rewards.sum(axis=1)
    array([3., 3., 3.])
    """
    size = integer("modulus", modulus)
    chosen = ((r,) for r in range(size)) if prompts is None else prompts
    verifier = partial(_modular_sum, size, graded)
    return _problem("modular-sum", OutputSpace(size, length, end), chosen, verifier)


def _digit_addition(base: int, digits: int, graded: bool, prompt: Tokens, output: Tokens) -> float:
    def number(places: Tokens) -> int:
        return reduce(lambda value, digit: value * base + digit, places, 0)

    total = number(prompt[:digits]) + number(prompt[digits:])
    if not graded:
        return float(len(output) > 0 and number(output) == total)
    places = [total // base**i % base for i in range(digits + 1)]
    # Digits are compared from the last one, in the order of addition.
    return sum(a == b for a, b in zip(places, reversed(output), strict=False)) / len(places)


def digit_addition(
    base: int,
    digits: int,
    *,
    end: bool = False,
    graded: bool = False,
    prompts: Iterable[Sequence[int]] | None = None,
) -> TokenProblem:
    """The sum of two numbers, digit by digit, the most significant first.

    A prompt is the digits of one number and then those of the other; an output has one digit more.
    With an end token an output may be shorter, and leading zeros may be left out.

    Arguments:
        base: base of the digits, also the vocabulary, at least 2.
        digits: number of digits of each number.
        graded: reward by the share of right digits of the sum, instead of right or wrong.
        prompts: sequences of 2 ``digits`` digits; None for all pairs of numbers.
        end: as for :func:`modular_sum`.

    >>> problem = digit_addition(2, 1, prompts=[(1, 1)])
    >>> problem.space.content(int(problem.rewards[0].argmax()))
    (1, 0)
    """
    size, places = integer("base", base, 2), integer("digits", digits)
    space = OutputSpace(size, places + 1, end)
    chosen = product(range(size), repeat=2 * places) if prompts is None else prompts
    verifier = partial(_digit_addition, size, places, graded)
    return _problem("digit-addition", space, chosen, verifier)


def _bracket_matching(graded: bool, prompt: Tokens, output: Tokens) -> float:
    open_ones: list[int] = []
    wrong = 0
    for token in (*prompt, *output):
        if token % 2 == 0:
            open_ones.append(token)
        elif open_ones and open_ones[-1] == token - 1:
            open_ones.pop()
        else:
            wrong += 1
    wrong += len(open_ones)
    return 1.0 - wrong / max(len(prompt) + len(output), 1) if graded else float(wrong == 0)


def bracket_matching(
    kinds: int,
    length: int,
    *,
    end: bool = False,
    graded: bool = False,
    prompts: Iterable[Sequence[int]] | None = None,
) -> TokenProblem:
    """The problem of outputs that close all brackets of the prompt, so that both together are balanced.

    Token 2i opens a bracket of kind i and token 2i + 1 closes it.

    Arguments:
        kinds: number of kinds of brackets; the vocabulary is twice that.
        length: largest number of tokens in an output.
        graded: reward by the share of brackets with a partner, instead of balanced or not.
        prompts: sequences of brackets; None for all sequences of opening brackets that an output of full
            length can close.
        end: as for :func:`modular_sum`.

    >>> problem = bracket_matching(1, 2)
    >>> problem.prompts, problem.rewards.argmax(axis=1)
    (((), (0, 0)), array([1, 3]))
    """
    size, most = integer("kinds", kinds), integer("length", length)
    space = OutputSpace(2 * size, most, end)
    depths = range(most + 1) if end else range(most % 2, most + 1, 2)
    openings = (
        tuple(2 * kind for kind in chosen)
        for depth in depths
        for chosen in product(range(size), repeat=depth)
    )
    chosen = openings if prompts is None else prompts
    return _problem("brackets", space, chosen, partial(_bracket_matching, graded))


def _sorting(graded: bool, prompt: Tokens, output: Tokens) -> float:
    right = sorted(prompt)
    if not graded:
        return float(list(output) == right)
    places = max(len(right), len(output), 1)
    return sum(a == b for a, b in zip(right, output, strict=False)) / places


def sorting(
    values: int,
    length: int,
    *,
    end: bool = False,
    graded: bool = False,
    prompts: Iterable[Sequence[int]] | None = None,
) -> TokenProblem:
    """The problem of sorting the prompt's tokens in ascending order.

    Arguments:
        values: v, the vocabulary.
        length: length of prompts, and largest number of tokens in an output.
        graded: reward by the share of right places, instead of right or wrong.
        prompts: sequences of at most ``length`` values (exactly that many without an end token);
            None for all sequences of that length.
        end: as for :func:`modular_sum`.

    >>> problem = sorting(2, 2)
    >>> problem.rewards.argmax(axis=1)
    array([0, 1, 1, 3])
    """
    size, most = integer("values", values), integer("length", length)
    space = OutputSpace(size, most, end)
    chosen = product(range(size), repeat=most) if prompts is None else prompts
    return _problem("sorting", space, chosen, partial(_sorting, graded))


def _problem(
    name: str,
    space: OutputSpace,
    prompts: Iterable[Sequence[int]],
    verifier: Verifier,
) -> TokenProblem:
    problem = TokenProblem(space, prompts, verifier, name=name)  # type: ignore[arg-type]
    for prompt in problem.prompts:
        if max(prompt, default=0) >= space.vocabulary:
            raise InputError(f"prompt {prompt}: tokens are 0 to {space.vocabulary - 1}")
    return problem


def token_outcomes(
    problem: SoftmaxBandit, theta: ArrayLike | None = None, reference: SoftmaxPolicy | None = None
) -> TokenOutcomes:
    """All outputs of a problem token by token, drawn by its policy, with scores at other parameters.

    If the policy has no tokens, each arm is an output of one token.

    Arguments:
        problem: problem at the parameters θ_old of the sampling policy.
        theta: θ (d,) (default: θ_old).
        reference: policy of the KL penalty, over the same outputs (default: π_old).

    >>> task = modular_sum(2, 2)
    >>> from ustat_pg.policies import PrefixSoftmax
    >>> found = token_outcomes(task.at(PrefixSoftmax.zeros(task.space, task.contexts)))
    >>> found.scores.shape, found.probs[0]
    ((2, 4, 2, 12), array([0.25, 0.25, 0.25, 0.25]))
    """
    old = problem.policy
    space = old.space or getattr(getattr(old, "source", None), "space", None)
    space = OutputSpace(problem.arms, 1) if space is None else space
    if space.count != problem.arms:
        raise InputError(
            f"the policy has {space.count} outputs: the problem has {problem.arms} arms"
        )
    new = old if theta is None else old.with_theta(finite_array("theta", theta, 1))
    other = old if reference is None else reference
    if other.logits.shape != old.logits.shape:
        raise InputError(
            f"the reference's logits have shape {other.logits.shape}: the policy's have {old.logits.shape}"
        )

    def logs(policy: SoftmaxPolicy) -> Array:
        return np.stack([space.by_token(row)[0] for row in policy.logits])

    tokens = [space.by_token(new.logits[x], new.scores(x)) for x in range(problem.contexts)]
    drawn = logs(old)
    return TokenOutcomes(
        context_probs=problem.context_probs,
        rewards=problem.mean_rewards,
        inside=(space.nodes != PAD).astype(np.float64),
        old=drawn,
        new=np.stack([log_probs for log_probs, _ in tokens]),
        reference=drawn if reference is None else logs(reference),
        scores=np.array([scores for _, scores in tokens]),
        binary=problem.binary,
    )
