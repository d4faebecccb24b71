"""``ustat-pg advise`` of a language model: which group size, and how sure that is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..validation import InputError, integer
from .arguments import source
from .asked_pool import make_folder, on_policy_z, scored_pool, shown_progress
from .printing import finite, records, say_facts

if TYPE_CHECKING:
    from ..predictions import GroupSizeAdvice
    from .pool import ScoredPool

__all__ = ["group_size_of_pool"]

_ENOUGH = 0.05
"""Of a model that samples, how far above the least error the advised G may be before no more is drawn."""


def group_size_of_pool(
    options: argparse.Namespace, say: Callable[..., None], draw: Callable[..., None]
) -> None:
    """Which group size for this model and these prompts, in the form that bandits get it.

    Arguments:
        options: of the command.
        say: prints an advice, as :func:`ustat_pg.cli.say_advice` does.
        draw: draws one into a file, as :func:`ustat_pg.cli.draw_advice` does.
    """
    from ..predictions import near_budget
    from .constants import decide
    from .estimates import oracle_ratio, summary

    costly = options.output_cost is not None or bool(options.prompt_cost)
    if not costly:
        # Before anything is sampled.
        integer("budget", options.budget, 2)
    until: str | float | None = options.until
    if until is None and options.limit is None and source(options) == "model":
        until = _ENOUGH
    until = None if until == "all" else until
    if until == "flat" and (costly or options.population is not None):
        raise InputError(
            "--until flat is of G* where outputs alone cost, and prompts are drawn anew: with costs or a "
            "population write the loss that will do, --until 5% for example"
        )
    make_folder(options.out)
    costs = {
        "prompt_cost": options.prompt_cost or 0.0,
        "output_cost": options.output_cost,
        "population": options.population,
    }
    looks: list[dict[str, Any]] = []

    def settled(pool: ScoredPool) -> bool:
        found = decide(pool, options.budget, costs) if pool.size > 1 else None
        enough = found is not None and until is not None and found.settles(until)
        looks.append({"prompts": pool.size, **(found.record() if found else {}), "settled": enough})
        so = "going on" if len(looks) < pool.looks else "there are no more"
        _say_look(
            f"look {len(looks)} of {pool.looks}: {pool.size} prompts, "
            f"{found or 'no group has a signal'}: {'enough' if enough else so}"
        )
        return enough

    with shown_progress() as progress:
        pool, _ = scored_pool(options, progress, None if until is None else settled)
    decided = decide(pool, options.budget, costs)
    if decided is None:
        raise InputError(
            "all rewards of each prompt are equal: no group of this pool has a signal, and nothing "
            "can be said of the group size; take other prompts or more rollouts"
        )
    known, advice = decided.known, decided.advice
    size, worst = decided.group_size, decided.worst
    ratio = oracle_ratio(pool, [size]).iloc[0]
    near = None
    if not costly and options.population is None:
        near = near_budget(known.predictions(), options.budget)
    more = {
        **{name: getattr(known, name) for name in ("c1", "c2", "c3", "gradient_sq", "k_crit")},
        "k_crit_interval": [finite(end) for end in known.k_crit_interval()],
        **decided.record(),
        "looks": looks or None,
        "better_budget": None if near is None or near[0] == options.budget else list(near),
        "on_policy_z": on_policy_z(pool),
        "critic_cost": {
            "group_size": size,
            "mse_over_oracle": finite(ratio["predicted"]),
            "low": finite(ratio["low"]),
            "high": finite(ratio["high"]),
        },
        "constants": records(known.frame()),
        "pool": {
            "prompts": pool.size,
            "rollouts": pool.rollouts,
            "dtype": pool.config.get("dtype"),
            "autocast": pool.config.get("autocast_bf16"),
            "summary": records(summary(pool)),
        },
        "taken_as_zero": list(known.clipped),
    }
    if options.plot is not None:
        draw(advice, options.plot)
    if options.csv:
        print(advice.to_frame().to_csv(index=False), end="")
        return
    if options.json:
        say(advice, as_json=True, more=more)
        return
    say_facts(pool, summary(pool))
    low, high = known.g_star_interval()
    if "c1" in known.clipped:
        print(
            "The estimate of c1, the spread of prompts' gradients, is below 0 and taken as 0: what "
            f"follows is for that case. All that this pool tells is that G* is at least {low:.3g}.\n"
        )
    say(advice, advised=_advised(advice, size, worst, near, options.budget))
    if known.k_crit is not None:
        least, most = known.k_crit_interval()
        print(
            f"Critical budget, where the least error is ‖g‖²: {known.k_crit:.3g} outputs a step "
            f"(95%: {least:.3g} {_upwards(most)})."
        )
    if any(row.zero_signal_share is None for row in advice.table):
        print(
            f"Of groups of more than the pool's {pool.rollouts} rollouts the share with equal rewards "
            "is not known; it does not rise with G."
        )
    if not costly and options.population is None:
        print(
            f"The best real G is known from {low:.3g} {_upwards(high)} (95%, {pool.size} prompts)."
        )
    if known.unbounded:
        print(
            "The spread of prompts' gradients, c1, is not told from 0 by this pool: a larger group "
            "may be as good; score more prompts to know."
        )
    (batch,) = (row.batch_size for row in advice.table if row.group_size == size)
    print(
        f"In TRL: num_generations = {size}, {batch * size} completions a step "
        "(per-device batch x processes x steps per generation)."
    )
    print(_critic_cost(size, ratio))
    if looks and not looks[-1]["settled"]:
        print("The prompts are used up, and not enough is known for --until: give more of them.")


def _say_look(line: str) -> None:
    """A line on stderr, above the bar where there is one."""
    from tqdm import tqdm

    tqdm.write(line, file=sys.stderr)


def _upwards(end: float) -> str:
    return f"to {end:.3g}" if np.isfinite(end) else "without an upper end"


def _advised(
    advice: GroupSizeAdvice,
    size: int,
    worst: float | None,
    near: tuple[int, int] | None,
    budget: float,
) -> str | None:
    """What to do where constants are known from an interval to another; None where they are not."""
    if worst is None:
        return None
    told = f"Use G = {size}"
    if near is not None and near[0] != budget:
        told = (
            "No group size that fits this budget is within 5% of the least error: take a budget of "
            f"{near[0]} with G = {near[1]}, or here G = {size}"
        )
    told += (
        f": whatever c1, c2 and c3 are within their 95% intervals, its error is at most {worst:.3g} times "
        "the least of the group sizes above."
    )
    if size != advice.g_best:
        told += f" G = {advice.g_best} is the best at their estimates, and may cost more elsewhere."
    return told


def _critic_cost(size: int, ratio: Any) -> str:
    """What grpo's error exceeds the oracle's by, in a sentence."""
    cost, low, high = (float(ratio[name]) for name in ("predicted", "low", "high"))
    if not np.isfinite(cost):
        return f"What not knowing the value costs with G = {size} cannot be told from this pool."
    known = np.isfinite(high) and low > 0
    ends = f"95%: {low - 1:.1%} to {high - 1:.1%}" if known else "its error is not known"
    return f"Not knowing the value costs {cost - 1:.1%} of error at one prompt with G = {size} ({ends})."
