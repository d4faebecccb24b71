"""For your own CI: is the advantage function of your trainer unbiased, and what is its MSE?

A trainer turns the rewards of a group into advantages and averages scores with them,
ĝ = (1/BG) Σ_b Σᵢ s_{b,i} A_{b,i}. A wrong advantage function still trains, only worse, so no loss curve shows
it. Here its expectation is *enumerated* on small problems with a known gradient. So there is no sampling
error and no tolerance for one, and the answer takes a second.

A torch trainer's function in five lines::

    import torch
    from ustat_pg.testing import assert_finite, assert_unbiased

    def test_my_advantages():
        assert_unbiased(my_advantages, array=torch.tensor)
        assert_finite(my_advantages, array=torch.tensor)

:func:`assert_is` compares the function with a trainer's options, biased or not. :func:`climbed_reward`
computes what it climbs, also for ranks by a judge and votes of the group. :func:`linear_formula` derives the
mean and the error of a function that is linear in the rewards, as formulas in G.
:func:`assert_invariances` tests properties that hold reward by reward, and :func:`rewards`,
:func:`scores` and :func:`problems` are Hypothesis strategies for tests of your own
(``pip install 'ustat_pg[testing]'``; nothing else here needs Hypothesis). :func:`ustat_pg.compare` compares
the errors of unbiased functions.

How the function is called is its *layout*:

``"batched"``
    one array (n, G) with the group on the last axis: n groups of n prompts, *each on its own*. A check makes
    sure that groups do not mix. For a function of a flat (n·G,) array wrap it: ``lambda z:
    mine(z.reshape(-1), z.shape[-1]).reshape(z.shape)``.
``"minibatch"``
    one minibatch (B, G) at a time, for functions that mix prompts, such as batch normalisation, or a baseline
    from other prompts.
``"group"``
    one group (G,) at a time.

Functions that are random, or too large to enumerate, are sampled: :func:`assert_mean` is the assertion,
    :func:`mean_detects` the smallest gap that it detects, and :func:`mean_needs` the replications that a gap
    needs. The other assertions enumerate, or try fixed cases, and need no replications;
    :func:`assert_unbiased` and :func:`assert_is` detect ``rtol``, in the units that they name.

:func:`registered` converts a function with the signature of verl's and SkyRL's registers.

``inputs`` names the function's arguments, in order: ``"rewards"``, ``"squared_norms"`` (‖s‖² of each output,
of the rewards' shape) and ``"contexts"`` (the prompt's number, without the last axis). ``array`` converts a
NumPy array to the kind that the function needs (default: NumPy arrays, and if these fail and torch is
imported, its tensors). The function must be deterministic and have no memory: to test a baseline that
remembers earlier prompts, pass these in the minibatch.

>>> from ustat_pg.estimators import group_mean, grpo
>>> assert_unbiased(grpo)
>>> assert_unbiased(group_mean)
Traceback (most recent call last):
...
AssertionError: group_mean is biased: at G = 2 on problem ... c = (G-1)/G: a rescaled learning rate...
"""

from .function import INPUTS, LAYOUTS
from .invariances import INVARIANCES, assert_finite, assert_invariances
from .linear import NoFormulaError, linear_formula
from .registered import registered
from .row import assert_is
from .sampled import assert_mean, mean_detects, mean_needs
from .strategies import problems, rewards, scores
from .unbiased import assert_unbiased, climbed_reward, default_problems

__all__ = [
    "INPUTS",
    "INVARIANCES",
    "LAYOUTS",
    "NoFormulaError",
    "assert_finite",
    "assert_invariances",
    "assert_is",
    "assert_mean",
    "assert_unbiased",
    "climbed_reward",
    "default_problems",
    "linear_formula",
    "mean_detects",
    "mean_needs",
    "problems",
    "registered",
    "rewards",
    "scores",
]
