"""The registry of estimators: one record for each, with all its properties except the formulas.

The formulas are :mod:`ustat_pg.estimators` and, as tables by counts, those of
:mod:`ustat_pg.predictions.count_tables`.
It is on the lowest layer, because predictions, estimators, engines and pools read these records and must not
import each other. No other module lists estimators by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .validation import InputError, integer, one_of


@dataclass(frozen=True)
class Record:
    """The properties of an estimator, without its formulas.

    Arguments:
        name: its name in results.
        aliases: other names in use for the same estimator.
        needs: keyword arguments of the advantage function in addition to the rewards: constant, value (V),
            optimal_baseline (b*), squared_norms (‖s‖²), predicted_value (V_φ), best_table (b(0), ...) or
            earlier (earlier rewards of the same prompt).
        parameters: keywords of the numbers after a colon in the name, ``bayes:1,1``; a last "..." means that
            the keyword before it gets all numbers.
        least_group: smallest group; 2 if an output's own reward is left out.
        of_prompt: whether the baseline depends only on the prompt.
        of_pairs: whether the estimate is a share of the mean of ½ (s - s')(z - z') over pairs of outputs.
        whole_group: whether it is (G-1)/G times grpo, because the mean includes the output's own reward.
        within_rewards: whether the baseline is always within the range of the group's rewards, or 0.
        standardised: whether the mean square of its advantages is at most 1.
        closed_form: whether its error has a closed form, in :mod:`ustat_pg.predictions.mse`.
        by_count: whether its advantages for rewards 0 and 1 are a table by the number of successes, in
            :mod:`ustat_pg.predictions.count_tables`.
        of_thresholds: whether its advantages are a sum over thresholds, Σ_l (v_l - v_{l-1}) times those of
            the rewards 1{z ≥ v_l}.
        of_pools: whether its error can be estimated from a pool of rollouts with any rewards.
        function: its advantage function (default: the name with underscores).
        kernel: its arithmetic in compiled engines, one of ``KERNELS`` of :mod:`ustat_pg.engines.kinds`.
    """

    name: str
    aliases: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    least_group: int = 1
    of_prompt: bool = False
    of_pairs: bool = False
    whole_group: bool = False
    within_rewards: bool = False
    standardised: bool = False
    closed_form: bool = False
    by_count: bool = False
    of_thresholds: bool = False
    of_pools: bool = False
    function: str = ""
    kernel: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", self.function or self.name.replace("-", "_"))


LARGEST = 1e50
"""The largest number that a baseline may subtract, because squares of such numbers are added up."""

ESTIMATORS = {
    record.name: record
    for record in (
        Record(
            "vanilla",
            aliases=("reinforce",),
            of_prompt=True,
            closed_form=True,
            by_count=True,
            of_thresholds=True,
            of_pools=True,
            kernel="constant",
        ),
        Record(
            "grpo",
            aliases=("rloo",),
            least_group=2,
            of_pairs=True,
            closed_form=True,
            by_count=True,
            of_thresholds=True,
            of_pools=True,
            kernel="grpo",
        ),
        Record(
            "group-mean",
            aliases=("dr-grpo",),
            of_pairs=True,
            whole_group=True,
            closed_form=True,
            by_count=True,
            of_thresholds=True,
            kernel="group-mean",
        ),
        Record(
            "oracle",
            needs=("value",),
            of_prompt=True,
            closed_form=True,
            of_pools=True,
            kernel="value",
        ),
        Record(
            "constant",
            needs=("constant",),
            of_prompt=True,
            closed_form=True,
            kernel="constant",
        ),
        Record(
            "minimum-variance",
            needs=("optimal_baseline",),
            of_prompt=True,
            closed_form=True,
            of_pools=True,
            kernel="minimum-variance",
        ),
        Record(
            "norm-weighted",
            needs=("squared_norms",),
            least_group=2,
            within_rewards=True,
            of_pools=True,
            kernel="norm-weighted",
        ),
        Record("critic", needs=("predicted_value",), of_prompt=True, closed_form=True),
        Record("shrinkage", parameters=("amount", "mean_value"), least_group=2, by_count=True),
        Record("bayes", parameters=("successes", "failures"), by_count=True),
        Record(
            "best",
            needs=("best_table",),
            by_count=True,
        ),
        Record("count-table", parameters=("values", "..."), by_count=True),
        Record("loo-table", parameters=("values", "..."), by_count=True),
        Record(
            "shrunk-norm-weighted",
            needs=("squared_norms",),
            parameters=("prior_weight", "mean_value"),
        ),
        Record(
            "std",
            standardised=True,
            by_count=True,
            function="standardised",
            kernel="standardised",
        ),
        Record("std-ddof1", standardised=True, by_count=True, function="unbiased_std"),
        Record(
            "others-std",
            aliases=("nemo",),
            least_group=2,
            by_count=True,
            function="others_standardised",
        ),
        Record("maxrl", by_count=True),
        Record(
            "pass-at-k",
            aliases=("max-at-k",),
            parameters=("k",),
            by_count=True,
            of_thresholds=True,
        ),
        Record("gain-at-k", parameters=("k",), least_group=2, by_count=True, of_thresholds=True),
        Record(
            "memory",
            needs=("earlier",),
            parameters=("memory",),
            within_rewards=True,
            closed_form=True,
        ),
        Record(
            "weighted-memory",
            needs=("earlier",),
            parameters=("memory", "weight"),
            least_group=2,
            within_rewards=True,
            closed_form=True,
        ),
    )
}
"""The records by name."""

ALIASES = {alias: record.name for record in ESTIMATORS.values() for alias in record.aliases}
"""Other names of estimators, with the name in results."""


def parse(name: str) -> tuple[Record, dict[str, Any]]:
    """The record of an estimator given by a name or an alias, and the numbers in the name.

    >>> record, numbers = parse("bayes:1,0.5")
    >>> record.name, numbers
    ('bayes', {'successes': 1, 'failures': 0.5})
    """
    family, _, text = name.partition(":") if isinstance(name, str) else (name, "", "")
    one_of("estimator", family, [*ESTIMATORS, *ALIASES])
    record = ESTIMATORS[ALIASES.get(family, family)]
    keys, texts = record.parameters, text.split(",") if text else []
    if keys[-1:] == ("...",) and texts:
        return record, {keys[0]: tuple(_number(name, number) for number in texts)}
    if len(texts) != len(keys):
        spelling = f"{record.name}:{','.join(keys)}" if keys else record.name
        raise InputError(f"estimator {name!r}: it is written {spelling}")
    return record, {key: _number(name, number) for key, number in zip(keys, texts, strict=True)}


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"estimator {name!r}: {text!r} is not a number") from None
    if abs(value) > LARGEST:
        raise InputError(f"estimator {name!r}: {text!r} is beyond {LARGEST:g}")
    # Beyond 2^53 a float cannot separate neighbouring whole numbers.
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def record_of(name: str) -> Record:
    """The record of the estimator with this name or alias.

    >>> record_of("rloo").name
    'grpo'
    """
    return parse(name)[0]


def require_group(name: str, group_size: int) -> None:
    """Raise an error if a group is too small for the estimator."""
    least = record_of(name).least_group
    if integer("group size", group_size) < least:
        raise InputError(f"{name} needs a group of at least {least}: group size is {group_size}")
