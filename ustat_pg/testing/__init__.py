"""For your own CI: is the advantage function of your trainer unbiased, and what is its MSE?

A trainer turns the rewards of a group into advantages and averages scores with them,
ĝ = (1/BG) Σ_b Σᵢ s_{b,i} A_{b,i}. A wrong advantage function trains all the same, only worse, so
that no loss curve shows it. Here its expectation is *enumerated* on small problems whose gradient
is known: there is no sampling error, hence no tolerance for one, and the answer takes a second.

A torch trainer's function in five lines::

    import torch
    from ustat_pg.testing import assert_finite, assert_unbiased

    def test_my_advantages():
        assert_unbiased(my_advantages, array=torch.tensor)
        assert_finite(my_advantages, array=torch.tensor)

:func:`assert_is` asks whether it is what a trainer's options mean, biased or not, and
:func:`climbed_reward` what it climbs, ranks by a judge and votes of the group among others.
:func:`assert_invariances` tests properties that hold reward by reward, and :func:`rewards`,
:func:`scores` and :func:`problems` are Hypothesis strategies for tests of your own
(``pip install 'ustat_pg[testing]'``; nothing else here needs Hypothesis). What an unbiased function
still gains or loses against others, :func:`ustat_pg.compare` says.

How the function is called is its *layout*:

``"batched"``
    one array (n, G), the group on the last axis, n groups of n prompts, *each on its own*. That
    the groups do not mix is checked. For a function of a flat (n·G,) array wrap it:
    ``lambda z: mine(z.reshape(-1), z.shape[-1]).reshape(z.shape)``.
``"minibatch"``
    one minibatch (B, G) at a time, for functions that mix prompts: batch-normalised, or with a
    baseline taken from other prompts.
``"group"``
    one group (G,) at a time.

What is too large to enumerate, or random by itself, is sampled: :func:`assert_mean` stands beside
the smallest gap that it detects, :func:`mean_detects`, and the replications that it needs for one,
:func:`mean_needs`. The other assertions enumerate, or try fixed cases: they need no replications,
and what :func:`assert_unbiased` and :func:`assert_is` detect is ``rtol``, in the units that they
name.

A function of the signature that verl and SkyRL register becomes one of groups by :func:`registered`.

``inputs`` names what the function takes, in order: ``"rewards"``, ``"squared_norms"`` (‖s‖² of each
output, of the rewards' shape) and ``"contexts"`` (the prompt's number, without the last axis).
``array`` turns a NumPy array into the kind the function takes; unless it is given, NumPy arrays are tried
first and then, where torch is imported, its tensors. The function must be deterministic
and without memory: to test a baseline that remembers earlier prompts, hand those over in the
minibatch.

>>> from ustat_pg.estimators import group_mean, grpo
>>> assert_unbiased(grpo)
>>> assert_unbiased(group_mean)
Traceback (most recent call last):
...
AssertionError: group_mean is biased: at G = 2 on problem ... c = (G-1)/G: a rescaled learning rate...
"""

from .function import INPUTS, LAYOUTS
from .invariances import INVARIANCES, assert_finite, assert_invariances
from .registered import registered
from .row import assert_is
from .sampled import assert_mean, mean_detects, mean_needs
from .strategies import problems, rewards, scores
from .unbiased import assert_unbiased, climbed_reward, default_problems

__all__ = [
    "INPUTS",
    "INVARIANCES",
    "LAYOUTS",
    "assert_finite",
    "assert_invariances",
    "assert_is",
    "assert_mean",
    "assert_unbiased",
    "climbed_reward",
    "default_problems",
    "mean_detects",
    "mean_needs",
    "problems",
    "registered",
    "rewards",
    "scores",
]
