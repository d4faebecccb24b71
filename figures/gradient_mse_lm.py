"""Figure 4: the gradient MSE of language models against G, for every baseline; their noise over signal."""

from __future__ import annotations

from simulations.evidence.figure import Axis, Figure, Line, Panel

PANELS = (
    Panel("base", "base"),
    Panel("strong", "strong"),
    Panel("strong, with worked examples", "in-context"),
    Panel("short, without a scratch-pad", "short"),
)
"""The models, of the paper's three strengths and the counter-example."""

ERRORS = (
    # Points of three baselines at one group size stand side by side.
    Line("vanilla", aside=1),
    Line("grpo"),
    Line("oracle", aside=-1),
    Line("minimum-variance"),
    # The errors of weighted baselines come from random groups of the pool, whose noise does not fall
    # with G as the errors do.
    Line("norm-weighted", cut=True),
    Line("best", "best table, of other prompts"),
    # Stand-ins for the squared norm, thin: they crowd the line of what they stand for.
    Line("length-weighted", cut=True),
    Line("token-weighted", cut=True),
)

NOISE = (
    "vanilla",
    Line("grpo", "grpo, Dr. GRPO"),
    "oracle",
    Line("best", "best table, of other prompts"),
    "bayes:1,1",
    "std",
    Line("others-std", "by the others' std"),
    "maxrl",
)
"""Estimators whose noise over signal is drawn; a multiple of another has its line."""

STRENGTHS = (
    Panel("no worked example", "0 examples"),
    Panel("two worked examples", "2 examples"),
    Panel("eight worked examples", "8 examples"),
)
"""The strengths of a model that somebody else trained."""

FIGURES = (
    Figure(
        "gradient_mse_lm",
        "Gradient MSE of language models",
        "Mean squared error of the gradient against the group size on logarithmic axes, a panel for "
        "each language model: lines with 95% bands from one pool of rollouts, one for each baseline, "
        "and points with intervals from groups sampled anew. All fall with the group size, and grpo "
        "comes close to the oracle.",
        "gradient_mse_lm",
        y=Axis("MSE of one group's gradient", scale="log"),
        lines=ERRORS,
        by="panel",
        panels=PANELS,
        names="outside upper center",
        height=2.65,
    ),
    Figure(
        "gradient_mse_lm_noise",
        "Noise over signal of language models",
        "The variance of the gradient over its squared mean, in units of grpo's, against the group size on "
        "logarithmic axes, a panel for each language model: lines with 95% bands from one pool of "
        "rollouts, one for each estimator; grpo's is level at 1.",
        "gradient_mse_lm_noise",
        y=Axis(
            "noise over signal, over grpo's",
            scale="log",
            ticks=(0.25, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4),
        ),
        lines=NOISE,
        by="panel",
        panels=PANELS,
        names="outside upper center",
        height=2.65,
    ),
    Figure(
        "gradient_mse_lm_real",
        "Gradient MSE of a model that somebody else trained",
        "Mean squared error of one group's gradient against the group size on logarithmic axes, a panel for "
        "each number of worked examples: lines with 99% bands from one pool of rollouts, one for each "
        "baseline, and points with intervals from groups of other rollouts. All fall with the group size; "
        "in small groups grpo's error is the largest, and it comes close to the oracle's in large ones.",
        "gradient_mse_lm_real",
        y=Axis("MSE of one group's gradient", scale="log"),
        lines=ERRORS[:4],
        by="panel",
        panels=STRENGTHS,
        names="outside upper center",
        height=2.65,
    ),
)
