"""The saving from drawing prompts by another law than the data's, and that law (prompt_sampling)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..display.numbers import readable
from ..display.shown import Shown, plain
from ..moments.record import Moments, takes_problems
from ..validation import Array, integer
from .prompt_sampling import best_law, sampled_error, weights_of

if TYPE_CHECKING:
    import pandas as pd

Interval = tuple[float, float]

SHARE = 0.2
"""The share of the data's law in an advised law; weights are at most 5."""

NEAR = 0.05
"""The saving below which a law of prompts is not worth its code."""


@dataclass(frozen=True, eq=False)
class DrawingAdvice(Shown):
    """A law of prompts, and the outputs that it needs compared with the data's law at equal noise.

    Arguments:
        names: the prompts.
        law: q(x), (X,), with a share of the data's law.
        weights: ρ/q, the factors on the advantages of each prompt, (X,).
        group_size: G; None if only rewards are known.
        ratio: outputs times variance of the law over those of the data's law; from rollouts, the law is made
            of one half of each prompt's rollouts and measured on the other.
        interval: the 95% interval of the ratio; None if it is exact.
        basis: what the ratio is made of, in words.
    """

    names: tuple[str, ...]
    law: Array
    weights: Array
    group_size: int | None
    ratio: float
    interval: Interval | None
    basis: str

    def __str__(self) -> str:
        low, high = self.interval or (self.ratio, self.ratio)
        size = "" if self.group_size is None else f" at G = {self.group_size}"
        ends = "" if self.interval is None else f" (95%: {_saved(high)} to {_saved(low)})"
        head = f"Drawing prompts by {self.basis}{size}, weighted by ρ/q: "
        if not isfinite(self.ratio) or not (high <= 1 or low >= 1 - NEAR):
            known = (
                f"{readable(low, 2)} to {readable(high, 2)}"
                if isfinite(high)
                else f"{readable(low, 2)} and more"
            )
            return f"{head}it is not known whether this saves outputs (it needs {known} times as many)."
        if low >= 1 - NEAR:
            return (
                f"{head}it saves less than {NEAR:.0%} of the outputs, if any: draw as the data do."
            )
        most = self.weights.max()
        return (
            f"{head}it saves {_saved(self.ratio)} of the outputs for the same noise{ends}. Weights are at "
            f"most {readable(most)}; without them another objective is climbed."
        )

    def to_dict(self) -> dict[str, Any]:
        """The ratio and the law, as a dict for JSON."""
        law = plain({"prompt": self.names, "probability": self.law, "weight": self.weights})
        known = {"group_size": self.group_size, "ratio": self.ratio, "interval": self.interval}
        return {**plain(known), "basis": self.basis, "law": law}

    def to_frame(self) -> pd.DataFrame:
        """The law, with a row for each prompt: columns prompt, probability and weight."""
        import pandas as pd

        columns = {"prompt": self.names, "probability": self.law, "weight": self.weights}
        return pd.DataFrame(columns)


@takes_problems
def drawing_advice(
    moments: Moments, group_size: int, *, names: Sequence[str] = (), share: float = SHARE
) -> DrawingAdvice:
    """The best law of a problem's prompts at a group size, mixed with a share of the data's law.

    Arguments:
        moments: the problem, or its moments; any rewards.
        group_size: G.
        names: of the prompts (default: their numbers).
        share: share of the data's law.

    >>> from ustat_pg.problems import SoftmaxBandit
    >>> coins = SoftmaxBandit.bernoulli([[0.5, 0.5], [0.98, 0.02]], [[1, 0], [1, 0]])
    >>> found = drawing_advice(coins, 4)
    >>> print(found)
    Drawing prompts by their moments at G = 4, weighted by ρ/q: it saves 41% of the outputs for the same
    noise. Weights are at most 1.88; without them another objective is climbed.
    """
    size = integer("group size", group_size, 2)
    found = best_law(moments, size, share=share, largest_group=size)
    data = sampled_error(moments, moments.context_probs, size).cost
    return DrawingAdvice(
        names=tuple(names) or tuple(map(str, range(len(moments)))),
        law=found.law,
        weights=weights_of(moments.context_probs, found.law),
        group_size=size,
        ratio=found.cost / data,
        interval=None,
        basis="their moments",
    )


def _saved(ratio: float) -> str:
    return f"{1 - ratio:.0%}"
