"""What a scored pool says about every group size: error curves of baselines, and their order.

Every conditional MSE of Theorem 2 (mse) is linear in moments of one prompt,

    MSE_b(G)    = (E[‖s‖² (z-b)²] - ‖g‖²) / G                      vanilla, oracle, any constant
    MSE_grpo(G) = (τ - ‖g‖²) / G + (φ + ‖g‖²) / (G (G-1)),

with τ = E[‖s‖² a²], φ = σ² tr F. Each moment is a mean over tuples of *different* rollouts, a
U-statistic of K_ij = ⟨s_i, s_j⟩ and z, so each is unbiased however few rollouts there are, and so is
the whole curve. What is not linear: :mod:`ustat_pg.llm.tables` advantages that go by
the number of successes (std, MaxRL, the best table), :mod:`ustat_pg.llm.groups` weighted baselines and the
best constant. :mod:`ustat_pg.llm.batches` puts prompts together, :mod:`ustat_pg.llm.ratios` divides.

Errors are those of a jackknife that deletes a prompt; they hold the noise of rollouts and of random groups
too, since both are drawn anew for each prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from ..validation import InputError, integer
from .batches import DESIGNS, Batches
from .constants import ConstantsEstimate, constants
from .errors import BASELINES, TABLES, group_moments, names_of
from .groups import WEIGHTED, group_errors
from .moments import PromptMoments, beside, means, prompt_moments
from .ratios import noise_to_signal, oracle_ratio
from .scored import ScoredPool
from .summary import prompt_table, sizes_of, summary, zero_signal
from .tables import table_moments

__all__ = [
    "BASELINES",
    "DESIGNS",
    "TABLES",
    "WEIGHTED",
    "ConstantsEstimate",
    "PromptMoments",
    "constants",
    "curves",
    "group_errors",
    "noise_to_signal",
    "oracle_ratio",
    "ordering",
    "prompt_moments",
    "prompt_table",
    "summary",
    "table_moments",
    "zero_signal",
]

_PAPER = ("vanilla", "grpo", "oracle")
"""The paper's reading of Figure 4, the largest error first."""


def curves(
    pool: ScoredPool,
    group_sizes: Sequence[int],
    baselines: Sequence[str] = ("vanilla", "grpo", "oracle", "minimum-variance"),
    *,
    design: str = "prompt",
    batch_size: int = 1,
    constant: ArrayLike | None = None,
) -> pd.DataFrame:
    """The gradient MSE of every baseline at every group size, with 95% intervals.

    Arguments:
        pool: of N rollouts a prompt.
        group_sizes: G, at least 1; 2 for grpo; from 2 to N for weighted baselines; to N for tables by
            counts, to N-1 for biased ones.
        baselines: of :data:`BASELINES`, constant, and tables by counts, such as :data:`TABLES`. The error
            of a biased one is from g, its bias included; in its own units: :func:`noise_to_signal`.
        design: prompt, the mean over prompts of the error given the prompt; fixed, that over P, the
            error of the mean gradient of these P prompts (Figure 4); iid, B prompts drawn anew, so
            that the spread between prompts counts (Proposition 3, minibatch).
        batch_size: B, for iid only.
        constant: b, for the baseline constant only; or one of each prompt, (P,), in the pool's order. With
            the reward of one greedy completion of each this is ReMax.

    Returns:
        a row for each baseline and group size: baseline, group_size, mse, low, high, se, biased.
        Estimates are unbiased where ``biased`` is false, so they may be negative. Intervals regard
        the prompts as a sample of all prompts; for the fixed set itself they are wider than needed.

    Raises:
        InputError: any of these is not as said.

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> curves(pool, [2, 4], ["grpo"])[["baseline", "group_size", "mse"]].round(4).values.tolist()
    [['grpo', 2, 0.25], ['grpo', 4, 0.0903]]
    """
    names, sizes = names_of(baselines, constant), sizes_of(group_sizes)
    moments = prompt_moments(pool)
    batches = Batches(pool, moments, design, batch_size)
    rows = group_moments(pool, moments, names, sizes, constant)
    found = beside(*(batches.error(each) for row in rows for each in row))
    low, high = found.interval()
    return pd.DataFrame(
        {
            "baseline": np.repeat(names, len(sizes)),
            "group_size": np.tile(sizes, len(names)),
            "mse": found.full,
            "low": low,
            "high": high,
            "se": found.se,
            "biased": np.repeat([name == "minimum-variance" for name in names], len(sizes)),
        }
    )


def ordering(
    pool: ScoredPool,
    group_size: int,
    baselines: Sequence[str] = _PAPER,
    *,
    constant: ArrayLike | None = None,
) -> pd.DataFrame:
    """Which baseline has the larger MSE at a group size, pair by pair, by paired differences.

    The spread between prompts cancels, so the answer is the same in every design. Of biased tables it would
    not be: their bias does not fall with the batch size.

    Arguments:
        as for :func:`curves`; unbiased baselines.

    Returns:
        a row for each pair: first, second, difference (of the mean errors given the prompt, first
        less second), low, high, se, larger (the name, tie or open), paper (what the paper's
        reading vanilla > grpo > oracle says is larger; none where it says nothing) and reading
        (holds, fails, tie, open or none).

    >>> pool = ScoredPool.from_scores([[1.0, 0.0, 0.0, 0.0]], [[[1.0], [-1.0], [1.0], [-1.0]]])
    >>> ordering(pool, 4)[["first", "second", "larger", "paper"]].values.tolist()[0]
    ['vanilla', 'grpo', 'open', 'vanilla']
    """
    names = names_of(baselines, constant)
    if len(set(names)) < max(2, len(names)):
        raise InputError(f"baselines are {names}: at least two different ones are needed")
    sizes = [integer("group size", group_size)]
    moments = prompt_moments(pool)
    found_moments = [each for (each,) in group_moments(pool, moments, names, sizes, constant)]
    for name, each in zip(names, found_moments, strict=True):
        if each.biased:
            raise InputError(
                f"{name} is biased, and its error falls with the batch size to that bias: there is no one "
                "order; compare its noise over its signal (noise_to_signal)"
            )
    # ‖g‖² cancels in the differences.
    errors = [each.second - 2 * each.cross for each in found_moments]
    pairs = [(i, j) for i in range(len(names)) for j in range(i + 1, len(names))]
    apart = np.stack([errors[i] - errors[j] for i, j in pairs], axis=1)
    found = means(apart, pool.looks)
    low, high = found.interval()
    rows = []
    for place, (i, j) in enumerate(pairs):
        first, second = names[i], names[j]
        larger = "open"
        if low[place] > 0 or high[place] < 0:
            larger = first if low[place] > 0 else second
        elif low[place] == high[place] == 0:
            larger = "tie"
        paper = reading = "none"
        if first in _PAPER and second in _PAPER:
            paper = min(first, second, key=_PAPER.index)
            reading = "holds" if larger == paper else "fails"
            if larger in ("open", "tie"):
                reading = larger
        rows.append(
            (
                first,
                second,
                found.full[place],
                low[place],
                high[place],
                found.se[place],
                larger,
                paper,
                reading,
            )
        )
    columns = ["first", "second", "difference", "low", "high", "se", "larger", "paper", "reading"]
    return pd.DataFrame(rows, columns=columns)
