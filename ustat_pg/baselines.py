"""The baselines: one record each of what is known of it beside its formula.

The formulas are :mod:`ustat_pg.estimators`. On the ground, because predictions, estimators and engines
all read these records, and may not know each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from .validation import InputError, integer, one_of

__all__ = ["ALIASES", "BASELINES", "Baseline", "baseline", "require_group"]


@dataclass(frozen=True)
class Baseline:
    """A baseline, all but its formula.

    Arguments:
        name: the name in results.
        aliases: other names in use for the same estimator.
        needs: what the advantage function takes beside the rewards, by keyword: constant, value
            (V), optimal_baseline (b*), squared_norms (‖s‖²) or predicted_value (V_φ).
        least_group: the smallest group; 2 where an output's own reward is left out.
        of_prompt: a function of the prompt alone.
        of_pairs: the estimate is a share of the mean of ½ (s - s')(z - z') over pairs of outputs.
        within_rewards: never outside the range of the group's rewards, or 0.
        closed_form: the error has one, in :mod:`ustat_pg.predictions.mse`.
    """

    name: str
    aliases: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    least_group: int = 1
    of_prompt: bool = False
    of_pairs: bool = False
    within_rewards: bool = False
    closed_form: bool = False


BASELINES = {
    record.name: record
    for record in (
        Baseline("vanilla", ("reinforce",), of_prompt=True, closed_form=True),
        Baseline("grpo", ("rloo",), least_group=2, of_pairs=True, closed_form=True),
        Baseline("group-mean", of_pairs=True, closed_form=True),
        Baseline("oracle", needs=("value",), of_prompt=True, closed_form=True),
        Baseline("constant", needs=("constant",), of_prompt=True, closed_form=True),
        Baseline("minimum-variance", needs=("optimal_baseline",), of_prompt=True, closed_form=True),
        Baseline("norm-weighted", needs=("squared_norms",), least_group=2, within_rewards=True),
        Baseline("critic", needs=("predicted_value",), of_prompt=True, closed_form=True),
    )
}
"""The records by name."""

ALIASES = {alias: record.name for record in BASELINES.values() for alias in record.aliases}
"""Names in use for the same estimator, and the name in results."""


def baseline(name: str) -> Baseline:
    """The record of the baseline that goes by a name or an alias.

    >>> baseline("rloo").name
    'grpo'

    Raises:
        InputError: the baseline is unknown.
    """
    one_of("baseline", name, [*BASELINES, *ALIASES])
    return BASELINES[ALIASES.get(name, name)]


def require_group(name: str, group_size: int) -> None:
    """Refuse a group that the baseline cannot take.

    Raises:
        InputError: the size is no whole number, or too small.
    """
    least = baseline(name).least_group
    if integer("group size", group_size) < least:
        raise InputError(f"{name} needs a group of at least {least}: group size is {group_size}")
