"""Whole training runs of networks in torch: parameters of many runs stacked, one pass for all.

A step needs log-probabilities of the next token at the prefixes that its outputs pass, twice: to
draw the outputs and to differentiate. They are computed once, with a graph, and the gradient

    ĝ = (1/(BG)) Σ_b Σ_i A_{b,i} ∇ log π(y_{b,i} | x_b)

is one backward pass from them, whose weights are the sums of A / (BG) over the outputs that made
each choice. Runs are independent, so that the gradient of the sum over runs holds each run's own.

Two forms of the same numbers, the cheaper of which is taken:

- *table*: all prefixes of the minibatch's prompts (of all prompts, if those are fewer). A small
  transformer reads them as a tree, each prefix once, by a mask that shows it its own ancestors.
- *walk*: the drawn outputs alone, a pass for each token, the last with a graph.

This module needs torch; :mod:`~ustat_pg.engines.networks.cell` says what is asked and how it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from ... import rng
from ...memory import slices
from ...policies import OutputSpace
from ...policies.network import CausalTransformer
from ...policies.transformer import TransformerPolicy
from ...rng import words
from ...validation import InputError
from ..base import Array, Estimator, Replications, expected_reward, optimal_baseline
from .cell import NetworkTraining
from .models import Model, model_of
from .optimizers import optimizer_of
from .steps import steps_of

__all__ = ["Tables", "objectives", "run"]

_WORDS = 2**18
"""Words drawn at once, about: enough that calls cost nothing, few enough for a cache."""

_TREE = 80
"""The longest tree that a transformer reads at once: its attention grows with the square."""

_STEEP = 50
"""Positions of a tree at which its attention costs as much as all else."""

_BYTES = 2**27
"""Bytes held at once by gradients of single outputs, and by tables of which nothing is kept."""

_ENUMERATED = {"value", "optimal_baseline"}
"""What baselines need of all outputs of a prompt."""


class _Tree(nn.Module):
    """A transformer at all nodes of a tree of tokens, which see their ancestors and no others."""

    def __init__(self, network: CausalTransformer) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, places: Tensor, hidden: Tensor, root: int) -> Tensor:
        """Logits after the root and each node behind it: (P, S) to (P, S - root, A)."""
        network = self.network
        x = network.tokens(tokens) + network.places(places)
        for layer in network.layers:
            x = layer(x, hidden)
        logits: Tensor = network.head(network.norm(x[..., root:, :]))
        return logits


class Tables:
    """log π(· | prompt, prefix) at every prefix of some prompts, as a function of θ.

    Arguments:
        model: model of the policy.
        contexts: X.
    """

    def __init__(self, model: Model, contexts: int) -> None:
        self.model, self.space = model, model.space
        self._by_tree, self._prompt = False, 0
        if isinstance(model.policy, TransformerPolicy):
            self._prompt = max(map(len, model.policy.prompts))
            if self._prompt + self.space.prefixes <= _TREE:
                self._by_tree = True
                self._plant(model.policy, self._prompt)
        if not self._by_tree:
            self._lay()

    @property
    def cost(self) -> float:
        """The cost of a prompt, in positions of a walk."""
        if self._by_tree:
            size = self._tokens.shape[-1]
            return size * (1 + size / _STEEP)
        return len(self._ways) * self.read

    @property
    def read(self) -> int:
        """Positions that are read for one output."""
        return self._prompt + self.space.length

    @property
    def numbers(self) -> float:
        """About how many numbers a pass keeps for each prompt."""
        return self.cost * max(self.model.activity / self.read, 1)

    def __call__(self, theta: Tensor, contexts: Tensor) -> Tensor:
        """Log-probabilities of one θ (d,) at prompts (P,): (P, N, A)."""
        return self._tree(theta, contexts) if self._by_tree else self._leaves(theta, contexts)

    def _plant(self, policy: TransformerPolicy, longest: int) -> None:
        """Begin and prompt end at one slot, the root, for prompts of every length; then nodes."""
        space, count = self.space, len(policy.prompts)
        depth, token, parent = _family(space)
        size = longest + space.prefixes
        tokens = np.zeros((count, size), dtype=np.int64)
        places = np.zeros_like(tokens)
        seen = np.zeros((count, size, size), dtype=bool)
        for x, prompt in enumerate(policy.prompts):
            begin = longest - len(prompt)
            tokens[x, begin : longest + 1] = [policy.network.begin, *prompt]
            places[x, begin : longest + 1] = np.arange(len(prompt) + 1)
            tokens[x, longest + 1 :] = token[1:]
            places[x, longest + 1 :] = len(prompt) + depth[1:]
            # What stands before the beginning sees itself, for a softmax over nothing is none.
            seen[x] = np.eye(size, dtype=bool)
            own = np.arange(begin, longest + 1)
            seen[x, own[:, None], own] = own[:, None] >= own
            for node in range(1, space.prefixes):
                seen[x, longest + node] |= seen[x, longest + parent[node]]
        self._root = longest
        self._tokens, self._places = (self.model.integers(a) for a in (tokens, places))
        self._hidden = torch.tensor(~seen, device=self.model.device)
        self._module = _Tree(policy.network)

    def _tree(self, theta: Tensor, contexts: Tensor) -> Tensor:
        policy = self.model.policy
        assert isinstance(policy, TransformerPolicy)
        state = {f"network.{name}": value for name, value in policy.unflatten(theta).items()}
        read = self._tokens[contexts], self._places[contexts], self._hidden[contexts][:, None]
        logits = functional_call(self._module, state, (*read, self._root))
        return functional.log_softmax(logits, dim=-1)

    def _lay(self) -> None:
        """Ways that pass every prefix, and where each prefix is passed first."""
        self._ways = self.model.integers(self.space.ways)
        self._first = self.model.integers(self.space.first_visits)

    def _leaves(self, theta: Tensor, contexts: Tensor) -> Tensor:
        prompts, ways = len(contexts), len(self._ways)
        every = contexts[:, None].expand(prompts, ways).reshape(-1)
        found = self.model.choice_log_probs(theta, every, self._ways.repeat(prompts, 1))
        return found.reshape(prompts, -1, self.space.symbols)[:, self._first]


def _family(space: OutputSpace) -> tuple[NDArray[np.int64], ...]:
    """Depth, last token and parent of every prefix, (N,) each."""
    v = space.vocabulary
    depth = np.repeat(np.arange(space.length), v ** np.arange(space.length))
    offsets = np.cumsum([0, *(v**t for t in range(space.length))])
    number = np.arange(space.prefixes) - offsets[depth]
    return depth, number % v, offsets[np.maximum(depth - 1, 0)] + number // v


def _after(space: OutputSpace) -> NDArray[np.int64]:
    """What a token leads to at a prefix: another, or output k, written -1 - k; (N, A)."""
    after = np.zeros((space.prefixes, space.symbols), dtype=np.int64)
    rows, last = np.arange(space.count), space.lengths - 1
    after[space.nodes[rows, last], space.outputs[rows, last]] = -1 - rows
    for t in range(space.length - 1):
        going = last > t
        here = space.nodes[going, t], space.outputs[going, t]
        after[here] = space.nodes[going, t + 1]
    return after


class _Problem:
    """A problem's numbers on the device."""

    def __init__(self, training: NetworkTraining, model: Model) -> None:
        integers, doubles = model.integers, partial(torch.tensor, device=model.device)
        values, law = training.reward_law
        self.space = model.space
        self.contexts, self.arms, self.values = values.shape
        self.prompts = integers(rng.thresholds(training.context_probs))
        self.law = integers(rng.thresholds(law)).flatten(0, 1)
        self.rewards = doubles(np.array(values)).flatten(0, 1)
        self.mean_rewards = doubles(np.array(training.mean_rewards))
        self.probs = doubles(np.array(training.context_probs))
        self.after = integers(_after(model.space))
        places = np.where(
            model.space.nodes < 0,
            model.space.prefixes * model.space.symbols,
            model.space.nodes * model.space.symbols + model.space.outputs,
        )
        self.ways = integers(places)

    def draw_rewards(self, contexts: Tensor, outputs: Tensor, drawn: Tensor) -> Tensor:
        """Rewards of outputs (R, B, G) of prompts (R, B), by their words (R, B, G)."""
        pairs = contexts[..., None] * self.arms + outputs
        if self.values == 1:
            return self.rewards[pairs, 0]
        place = (drawn[..., None] >= self.law[pairs]).sum(-1)
        return self.rewards[pairs, place]

    def log_probs(self, tables: Tensor) -> Tensor:
        """log π(y | x) of all outputs from tables (..., N, A): (..., K)."""
        flat = functional.pad(tables.flatten(-2), (0, 1))
        total = flat[..., self.ways[:, 0]]
        for t in range(1, self.space.length):
            total = total + flat[..., self.ways[:, t]]
        return total


def _prompts(
    training: NetworkTraining, key: NDArray[np.int64], numbers: Tensor, ends: Tensor
) -> Tensor:
    """The prompts of whole runs, (T, R, B)."""
    batch, total, runs = training.batch_size, len(ends), len(numbers)
    wanted = training.steps * batch
    # Whole epochs.
    step = max(1, _WORDS // (runs * total)) * total
    slot = torch.tensor(rng.CONTEXT_SLOT, device=ends.device)
    parts = []
    for some in slices(wanted, step):
        first, count = some.start, some.stop - some.start
        if training.design == "iid":
            drawn = words(key, numbers, slot, count, first)
            parts.append(torch.searchsorted(ends, drawn.contiguous(), right=True).int())
            continue
        epochs = -(-count // total)
        drawn = words(key, numbers, slot, epochs * total, first).reshape(-1, total)
        order = torch.arange(total, device=ends.device).repeat(len(drawn), 1)
        rng.shuffle(order, drawn)
        parts.append(order.reshape(runs, -1)[:, :count].int())
    found = torch.cat(parts, dim=1)
    return found.reshape(runs, training.steps, batch).transpose(0, 1)


def _outputs_words(
    training: NetworkTraining, key: NDArray[np.int64], numbers: Tensor, length: int
) -> Iterator[Tensor]:
    """Step by step the words of the outputs and their rewards, (R, B, G, l + 1)."""
    group, batch = training.group_size, training.batch_size
    each = group * (length + 1)
    for some in slices(training.steps, _WORDS // (len(numbers) * batch * each)):
        steps = np.arange(some.start, some.stop)[:, None, None] + 1
        slots = rng.step_slots(steps, np.arange(batch))
        where = torch.tensor(slots, device=numbers.device)
        drawn = words(key, numbers[:, None], where, each)
        yield from drawn.reshape(*drawn.shape[:-1], group, length + 1)


def _choose(ends: Tensor, drawn: Tensor) -> Tensor:
    """The tokens that words (...) choose, by running sums (..., A)."""
    level = drawn.double() * 2.0**-32 * ends[..., -1]
    return (level[..., None] >= ends).sum(-1)


def _running(log_probs: Tensor) -> Tensor:
    """C_a = e_1 + … + e_a with e_a = exp(log p_a - max), in float64."""
    exact = log_probs.double()
    return (exact - exact.amax(-1, keepdim=True)).exp_().cumsum(-1)


class _Runs:
    """One chunk of runs.

    Arguments:
        training: the cell.
        estimator: estimator of the gradient.
        seed, first, count: seed and numbers of the runs.
    """

    def __init__(
        self, training: NetworkTraining, estimator: Estimator, seed: int, first: int, count: int
    ) -> None:
        self.training, self.estimator, self.first, self.count = training, estimator, first, count
        self.weigher = estimator.begin(count, training.group_size)
        self.model = model_of(training.policy, training.device, training.precision)
        self.problem = _Problem(training, self.model)
        self.space = self.model.space
        self.key = rng.cell_key(seed, training.address)
        device = self.model.device
        # Added, as the end of the range may be 2^63.
        self.numbers = first + torch.arange(count, device=device)
        start = training.starts(Replications(seed, first, count))
        # In float64 whatever the network's precision: small steps must not be rounded away.
        self.theta = torch.tensor(start, device=device)
        self.tables = Tables(self.model, self.problem.contexts)
        self.all_prompts = self.problem.contexts <= training.batch_size
        prompts = min(self.problem.contexts, training.batch_size)
        outputs = training.batch_size * training.group_size
        self.by_table = (
            self.space.length == 1
            or not _ENUMERATED.isdisjoint(estimator.record.needs)
            or prompts * self.tables.cost <= outputs * (self.tables.read + 1)
        )

    def states(self) -> Iterator[Tensor]:
        """θ₀, θ₁, …, θ_T, (R, d) each, float64."""
        yield self.theta
        training, length = self.training, self.space.length
        prompts = _prompts(training, self.key, self.numbers, self.problem.prompts)
        drawn = _outputs_words(training, self.key, self.numbers, length)
        rates = training.schedule.rates(training.steps)
        step = steps_of(optimizer_of(training.optimizer), training.policy, self.theta)
        for t, (contexts, own, rate) in enumerate(zip(prompts, drawn, rates, strict=True), start=1):
            slope = self.slope(t, contexts.long(), own)
            self.theta = step(slope, float(rate))
            yield self.theta

    def slope(self, t: int, contexts: Tensor, drawn: Tensor) -> Tensor:
        """ĝ from the minibatch of step t, at prompts (R, B), by words (R, B, G, l + 1): (R, d)."""
        theta = self.theta.detach().to(self.model.dtype).requires_grad_()
        way = self._by_table if self.by_table else self._by_walk
        log_probs, chosen, outputs, known = way(t, theta, contexts, drawn)
        rewards = self.problem.draw_rewards(contexts, outputs, drawn[..., -1])
        weighed = self._weighed(theta, contexts, outputs, rewards, known)
        # One place more than there are choices: tokens after an output's end go there.
        weights = torch.zeros(log_probs.numel() + 1, dtype=torch.float64, device=theta.device)
        share = weighed / (self.training.batch_size * self.training.group_size)
        for places in chosen:
            weights.index_add_(0, places.flatten(), share.flatten())
        pull = weights[:-1].reshape(log_probs.shape).to(log_probs.dtype)
        (slope,) = torch.autograd.grad(log_probs, theta, pull)
        return slope.double()

    def _require_finite(self, t: int, log_probs: Tensor) -> None:
        # A sum of finite numbers may overflow in float32; of what is not finite it never is.
        if bool(torch.isfinite(log_probs.detach().sum(dtype=torch.float64))):
            return
        bad = ~torch.isfinite(log_probs.detach().flatten(1)).all(1)
        self._refuse(t, bad, "log-probabilities")

    def require_finite_end(self, t: int) -> None:
        """Refuse parameters that are not finite after t steps."""
        bad = ~torch.isfinite(self.theta).all(1)
        if bool(bad.any()):
            self._refuse(t + 1, bad, "parameters")

    def _refuse(self, t: int, bad: Tensor, what: str) -> None:
        number = self.first + int(bad.int().argmax())
        rates = self.training.schedule.rates(self.training.steps)
        rate = f"with a rate of {rates[t - 2]:.4g}" if t > 1 else "before any"
        raise InputError(
            f"run {number} of {self.estimator.label} has {what} that are not finite after "
            f"{t - 1} steps, {rate}: take smaller rates or another start"
        )

    def _by_table(
        self, t: int, theta: Tensor, contexts: Tensor, drawn: Tensor
    ) -> tuple[Tensor, list[Tensor], Tensor, dict[str, Tensor]]:
        """Log-probabilities, places of the choices in them, outputs (R, B, G), and the tables."""
        space, (runs, batch) = self.space, contexts.shape
        if self.all_prompts:
            every = torch.arange(self.problem.contexts, device=theta.device)
            log_probs = vmap(self.tables, in_dims=(0, None))(theta, every)
            place = contexts
        else:
            log_probs = vmap(self.tables)(theta, contexts)
            place = torch.arange(batch, device=theta.device).expand(runs, batch)
        self._require_finite(t, log_probs)
        prompts, symbols = log_probs.shape[1], space.symbols
        ends = _running(log_probs.detach()).flatten(0, 2)
        row = torch.arange(runs, device=theta.device)[:, None] * prompts + place
        base = (row * space.prefixes)[..., None]
        node = torch.zeros(drawn.shape[:-1], dtype=torch.int64, device=theta.device)
        chosen = []
        for step in range(space.length):
            at = base + node.clamp(min=0) if space.end else base + node
            token = _choose(ends[at], drawn[..., step])
            places, after = at * symbols + token, self.problem.after
            if space.end:
                alive = node >= 0
                chosen.append(torch.where(alive, places, log_probs.numel()))
                node = torch.where(alive, after[node.clamp(min=0), token], node)
            else:
                chosen.append(places)
                node = after[node, token]
        return log_probs, chosen, -1 - node, {"tables": log_probs.detach(), "place": place}

    def _by_walk(
        self, t: int, theta: Tensor, contexts: Tensor, drawn: Tensor
    ) -> tuple[Tensor, list[Tensor], Tensor, dict[str, Tensor]]:
        """What :meth:`_by_table` gives, from the drawn outputs alone."""
        space, model, (runs, batch) = self.space, self.model, contexts.shape
        group, length, symbols = drawn.shape[2], space.length, space.symbols
        every = contexts[..., None].expand(runs, batch, group).flatten(1)
        tokens = torch.full((runs, batch * group, length), -1, device=theta.device)
        node = torch.zeros(runs, batch * group, dtype=torch.int64, device=theta.device)
        passed = []
        for step in range(length):
            with torch.no_grad() if step < length - 1 else torch.enable_grad():
                if step == length - 1:
                    log_probs = vmap(model.choice_log_probs)(theta, every, tokens)
                    self._require_finite(t, log_probs)
                    here = log_probs.detach()[:, :, step]
                elif step:
                    here = self._next(step)(theta, every, tokens)
                else:
                    # Outputs of one prompt begin alike.
                    first = self._next(0)(theta, contexts, tokens[:, ::group])
                    here = first.repeat_interleave(group, dim=1)
            token = _choose(_running(here), drawn[..., step].flatten(1))
            alive = node >= 0
            passed.append(alive)
            tokens = torch.cat(
                [
                    tokens[..., :step],
                    torch.where(alive, token, -1)[..., None],
                    tokens[..., step + 1 :],
                ],
                dim=-1,
            )
            node = torch.where(alive, self.problem.after[node.clamp(min=0), token], node)
        rows = torch.arange(runs * batch * group, device=theta.device).reshape(node.shape) * length
        chosen = [
            torch.where(alive, (rows + step) * symbols + tokens[..., step], log_probs.numel())
            for step, alive in enumerate(passed)
        ]
        return log_probs, chosen, (-1 - node).reshape(runs, batch, group), {}

    def _next(self, step: int) -> Callable[..., Tensor]:
        return vmap(partial(self.model.next_log_probs, position=step))

    # What baselines take beside the rewards.

    def _weighed(
        self,
        theta: Tensor,
        contexts: Tensor,
        outputs: Tensor,
        rewards: Tensor,
        tabulated: dict[str, Tensor],
    ) -> Tensor:
        """The advantages of drawn outputs (R, B, G)."""

        def law() -> tuple[Tensor, Tensor, Tensor]:
            """The prompts that are tabulated, and the probabilities and rewards of their outputs."""
            prompts = contexts
            if self.all_prompts:
                prompts = torch.arange(self.problem.contexts, device=theta.device)
                prompts = prompts.expand(len(contexts), -1)
            probs = self.problem.log_probs(tabulated["tables"].double()).exp()
            return prompts, probs, self.problem.mean_rewards[prompts]

        def value() -> Tensor:
            _, probs, mean_rewards = law()
            expected: Tensor = expected_reward(probs, mean_rewards)
            return expected.gather(1, tabulated["place"])

        def best() -> Tensor:
            prompts, probs, mean_rewards = law()
            found: Tensor = optimal_baseline(probs, mean_rewards, self._all_norms(theta, prompts))
            return found.gather(1, tabulated["place"])

        weighed: Tensor = self.weigher.weigh(
            rewards,
            value=value,
            optimal_baseline=best,
            squared_norms=lambda: self._norms_of(theta, contexts, outputs),
        )
        return weighed

    def _norms_of(self, theta: Tensor, contexts: Tensor, outputs: Tensor) -> Tensor:
        """‖s‖² of drawn outputs (R, B, G)."""
        if self.problem.contexts * self.space.count <= outputs[0].numel():
            every = torch.arange(self.problem.contexts, device=theta.device)
            norms = self._all_norms(theta, every.expand(len(theta), -1)).flatten(1)
            pairs = (contexts[..., None] * self.space.count + outputs).flatten(1)
            return norms.gather(1, pairs).reshape(outputs.shape)
        every = contexts[..., None].expand(outputs.shape).flatten(1)
        return self._norms(theta, every, outputs.flatten(1)).reshape(outputs.shape)

    def _all_norms(self, theta: Tensor, contexts: Tensor) -> Tensor:
        """‖s‖² of all outputs of prompts (R, P): (R, P, K)."""
        shape = (*contexts.shape, self.space.count)
        numbers = torch.arange(self.space.count, device=theta.device).expand(shape)
        every = contexts[..., None].expand(shape)
        return self._norms(theta, every.flatten(1), numbers.flatten(1)).reshape(shape)

    def _norms(self, theta: Tensor, contexts: Tensor, outputs: Tensor) -> Tensor:
        """‖s‖² of outputs (R, n) of prompts (R, n), in pieces that memory holds."""
        model, tokens = self.model, self.model.outputs()
        theta = theta.detach()

        def one(point: Tensor, context: Tensor, output: Tensor) -> Tensor:
            return model.log_prob(point, context[None], output[None])[0]

        def norm(point: Tensor, context: Tensor, output: Tensor) -> Tensor:
            return grad(one)(point, context, output).double().square().sum()

        def norms(point: Tensor, context: Tensor, output: Tensor) -> Tensor:
            return vmap(norm, in_dims=(None, 0, 0))(point, context, output)

        each = len(theta) * 8 * (3 * model.d + model.activity)
        parts = [
            vmap(norms)(theta, contexts[:, some], tokens[outputs[:, some]])
            for some in slices(outputs.shape[1], _BYTES // each)
        ]
        return torch.cat(parts, dim=1)


def run(
    training: NetworkTraining,
    estimator: Estimator,
    snapshots: Sequence[int],
    seed: int,
    first: int,
    replications: int,
) -> Array:
    """One chunk of the runs of a :class:`~ustat_pg.engines.NetworkTraining`."""
    runs = _Runs(training, estimator, seed, first, replications)
    kept = []
    with torch.enable_grad():
        for t, theta in enumerate(runs.states()):
            if t in snapshots:
                runs.require_finite_end(t)
                kept.append(theta.cpu().numpy())
            if t == snapshots[-1]:
                break
    return np.stack(kept, axis=1)


def objectives(training: NetworkTraining, theta: Array) -> Array:
    """J at parameters (n, d), by enumeration in float64: (n,)."""
    model = model_of(training.policy, training.device)
    problem = _Problem(training, model)
    tables = Tables(model, problem.contexts)
    weights = problem.probs[:, None] * problem.mean_rewards
    contexts = torch.arange(problem.contexts, device=model.device)
    points = torch.tensor(theta, device=model.device)

    def share(point: Tensor, some: Tensor) -> Tensor:
        return (weights[some] * problem.log_probs(tables(point, some)).exp()).sum()

    each = 8 * tables.numbers
    prompts = min(problem.contexts, max(1, int(_BYTES // each)))
    runs = max(1, int(_BYTES // (each * prompts)))
    total = torch.zeros(len(points), dtype=torch.float64, device=model.device)
    with torch.no_grad():
        for some in contexts.split(prompts):
            total += torch.cat([vmap(share, (0, None))(part, some) for part in points.split(runs)])
    return total.cpu().numpy()
