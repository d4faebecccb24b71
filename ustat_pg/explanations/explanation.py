"""A record of an estimator's effect on rewards 0 and 1, in words and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..catalogue import Family, Meaning, catalogue, short_name
from ..catalogue.turns import over_turns
from ..catalogue.unread import by_section, told
from ..display import shown
from ..display.numbers import readable
from ..predictions import even_reuse_bias
from ..rounding import GIVEN
from ..validation import InputError
from .text import Part, fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..testing.tables import Namesake

_NAMED = 12
"""The most ignored names that are printed; JSON has all of them."""

_FIRST = 3
"""The most names that are repeated beside the sentence that they may change."""


@dataclass(frozen=True)
class Explanation(shown.Shown):
    """The effect of an estimator on rewards 0 and 1.

    Arguments:
        estimator: this library's name of the estimator, or the framework's name if the library has none.
        group_size: G.
        unbiased: whether the advantage alone is unbiased for the gradient of the expected reward; this and
            each following field is None if it is unknown.
        weight: ``pass_rate`` and ``w``, the factor of a prompt's mean gradient, of the advantage alone.
        scale: factor by which the loss multiplies the gradient; None if it depends on lengths or the batch.
        frac_reward_zero_std: share of groups whose rewards are all equal.
        mse: E‖ĝ - ∇J‖² of one prompt drawn at random.
        noise_to_signal: tr Cov ĝ/‖E ĝ‖².
        cosine: of the angle between E ĝ and ∇J.
        best_table: b(0), ..., b(G-1) of the best unbiased estimator for these prompts.
        pass_rates, mean_factor: the prompts' pass rates, and w at each.
        noise_to_rloo, noise_to_oracle: noise to signal divided by that of RLOO and of the oracle.
        best_noise_to_rloo: the same ratio to RLOO for the best table.
        meaning: meaning of the framework's options, if options were explained.
        alike: for an advantage function, the estimator of which the function, or its weight, is a multiple;
            None if there is no such estimator.
        function: whether an advantage function was explained.
        assumed: whether only pass rates are known.
        gradient_norms: norms of the gradient at the pass rates, if they are given.
        rate: learning rate, if it was given: for options that take several passes over the same outputs.
    """

    estimator: str
    group_size: int
    frac_reward_zero_std: float
    best_table: list[float]
    pass_rates: list[float]
    unbiased: bool | None = None
    weight: dict[str, list[float]] | None = None
    scale: float | None = None
    mse: float | None = None
    noise_to_signal: float | None = None
    cosine: float | None = None
    mean_factor: list[float] | None = None
    noise_to_rloo: float | None = None
    noise_to_oracle: float | None = None
    best_noise_to_rloo: float | None = None
    meaning: Meaning | None = field(default=None, repr=False)
    alike: Namesake | None = None
    function: bool = False
    assumed: bool = True
    gradient_norms: list[float] | None = None
    rate: float | None = None

    def __str__(self) -> str:
        return self.text()

    def text(self, *, all: bool = False) -> str:
        """The explanation for readers, with the answer and the advice first.

        Arguments:
            all: whether nothing is left out; otherwise there are at most 40 lines, and the last
                sentence names what was left out.
        """
        return fitted(self._parts(), all)

    def _parts(self) -> list[Part]:
        """The parts of the text in their order."""
        family, meaning = self.family, self.meaning
        unchanged = {} if meaning is None else meaning.unchanged()
        still = [f"  {', '.join(names)}: {reason}." for reason, names in unchanged.items()]
        silent = f"  {self.frac_reward_zero_std:.1%} of groups of {self.group_size} have equal rewards here."
        answer = [f"  {family.what}", f"  It climbs: {family.climbs}", *_unless(meaning)]
        answer += [f"  Noise: {family.noise}"]
        climbs = list[str]()
        if self.weight is not None:
            answer = [f"  {_bias(self)}", *_unless(meaning), *_noise(self)]
            climbs = [f"  {family.climbs}", *curve(self.weight, self.pass_rates)]
        answer += [silent] * (self.group_size > 1)
        answer += [self._assumptions()] * (self.assumed and self.weight is not None)
        definition, notes = _definition(self)
        rest = [] if meaning is None else _rest(self, meaning)
        return [
            Part("", _heading(self), needed=True),
            Part("Answer", answer, needed=True),
            Part("", [f"Advice: {family.advice}"], needed=True),
            Part("The rest of the loss", rest, "the rest of the loss", brief=True),
            Part("What it climbs", climbs, "what it climbs", brief=True, divisible=False),
            Part("Definition", definition, "the definition"),
            Part("Noise and silent groups", _reasons(self), "why this noise"),
            Part("What changes nothing", [f"  {family.nothing}", *still], "what changes nothing"),
            Part("Notes on the framework", notes, "notes on the framework"),
            Part("The same elsewhere", [f"  {line}" for line in self.called], "its other names"),
        ]

    def _assumptions(self) -> str:
        """What the numbers assume where only pass rates are known."""
        gradients = ""
        if len(self.pass_rates) > 1:
            norms = "the given norms" if self.gradient_norms else "‖g‖² proportional to p(1-p)"
            gradients = f", and gradients g that are orthogonal, with {norms}"
        return (
            "  Pass rates alone say nothing about scores. These numbers assume equal norms, E‖s‖² = 1, and a "
            f"small gradient{gradients}; errors are in units of E‖s‖². If you give a problem, its own "
            "scores are used."
        )

    def to_dict(self) -> dict[str, Any]:
        """The explanation as a dict for JSON."""
        plain = dict(vars(self))
        meaning, alike = plain.pop("meaning"), plain.pop("alike")
        if plain.pop("function"):
            plain["alike"] = None if alike is None else asdict(alike)
        if meaning is not None:
            plain["framework"] = meaning.framework.name
            plain["own_name"] = meaning.row.name
            plain["aggregation"] = meaning.aggregation.name
            plain["releases"], plain["said"] = list(meaning.releases), list(meaning.said)
            plain["place"], plain["also"] = meaning.place, list(meaning.also)
            plain["passed_over"] = list(meaning.passed_over)
            plain["may_change"] = list(meaning.may_change)
            plain["off"] = meaning.off
            plain["changes_nothing"] = meaning.unchanged()
            plain["over_turns"] = over_turns(meaning)
            plain["passes"], plain["reuse_bias"] = meaning.passes, self.reuse_bias
        return plain | {"called": self.called, "advice": self.family.advice}

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot w against the pass rate, with the prompts marked.

        Arguments:
            axes: to draw on; new ones unless given.
        """
        if self.weight is None or self.mean_factor is None:
            raise InputError(f"{self.estimator} has no closed form here, so w cannot be plotted")
        prompts = self.pass_rates, self.mean_factor
        return plot_weight(axes, f"{self.estimator}, G = {self.group_size}", self.weight, *prompts)

    @property
    def family(self) -> Family:
        """The estimator's entry in the catalogue."""
        if self.function:
            named = self.alike is not None and self.alike.whole
            name = self.alike.name if self.alike is not None and named else "count-table"
            return catalogue().families[name.partition(":")[0]]
        other = None if self.meaning is None else self.meaning.row.other
        if other is not None:
            return catalogue().others[other]
        return catalogue().families[self.estimator.partition(":")[0]]

    @property
    def reuse_bias(self) -> list[float] | None:
        """The bias of the last pass over the gradient, in units of η E‖s‖², at each pass rate; None if there
        is one pass. If the options do not give the outputs of a step, it is for one group.
        """
        meaning = self.meaning
        outputs = 0.0 if meaning is None else meaning.outputs or float(self.group_size)
        if meaning is None or meaning.passes <= 1 or outputs <= 1:
            return None
        return even_reuse_bias(self.pass_rates, outputs, meaning.passes).tolist()

    @property
    def called(self) -> list[str]:
        """The frameworks' names for this estimator: title, options and own name of every row."""
        return [
            f"{framework.title}: {row.written() or 'as it is'} ({row.name})"
            for framework, row in catalogue().called(self.family.name)
        ]


def _heading(explanation: Explanation) -> list[str]:
    family, meaning = explanation.family, explanation.meaning
    if meaning is None:
        lines = [f"{explanation.estimator}: {family.title}"]
        return lines + ([f"  {_found(explanation)}"] if explanation.function else [])
    title = f"{meaning.framework.title} {meaning.written}".rstrip()
    lines = [
        f"{title}, G = {explanation.group_size}: {meaning.row.name}",
        f"  This is {explanation.estimator}: {family.title}.",
    ]
    if meaning.row.factor != "1":
        lines += [
            f"  Here it is multiplied by {meaning.row.factor} = {readable(meaning.factor, 4)}."
        ]
    lines += passed(meaning)
    if explanation.group_size == 1:
        (grouping,) = meaning.framework.of_kind("group size")
        default = f" {grouping.name} is 1 by default." if grouping.default == "1" else ""
        lines += [
            "  G = 1: there are no other outputs to compare an output with. Is that intended?"
            f"{default} Write {short_name(grouping.name)}=G."
        ]
    return lines


def _definition(explanation: Explanation) -> tuple[list[str], list[str]]:
    """Lines on the formula, and on the code of the framework."""
    family, meaning = explanation.family, explanation.meaning
    lines, notes = [f"  {family.formula}", f"  {family.what}"], list[str]()
    if meaning is None:
        elsewhere = [] if explanation.function else [family.elsewhere]
        return [*lines, *(f"  {words}" for words in elsewhere if words)], notes
    row, framework = meaning.row, meaning.framework
    if row.epsilon:
        lines += [f"  {readable(row.epsilon)} is added to the divisor; the numbers here ignore it."]
    if row.one_output:
        lines += [f"  The advantage in a group of one output is {row.one_output}."]
    source = f"{framework.repository}@{framework.commit} {row.source}"
    notes += [f"  {note}" for note in meaning.notes]
    return lines, [f"  Source: {source}, {framework.checked(row)}.", *notes]


def _found(explanation: Explanation) -> str:
    """A sentence on which estimator an advantage function equals."""
    tried = f"On groups of {explanation.group_size} rewards 0 and 1"
    if explanation.alike is None:
        return f"{tried} it is a new table, not a multiple of any in the catalogue."
    if explanation.alike.whole:
        return f"{tried} it is {explanation.alike}."
    climbs = catalogue().families[explanation.alike.name.partition(":")[0]].climbs
    return f"{tried} it is a new table, with the weight of {explanation.alike}. {climbs}"


def passed(meaning: Meaning) -> list[str]:
    """Lines on the release with these defaults, on other commands, and on names that are not read."""
    lines = [f"  {sentence}" for sentence in (*meaning.also, *meaning.said, *meaning.releases)]
    if meaning.may_change:
        names = ", ".join(told(meaning.may_change))
        lines += [f"  Not read, and may change the objective: {names}."]
    rest = by_section([name for name in meaning.passed_over if name not in meaning.may_change], 3)
    if rest:
        more = f" and {len(rest) - _NAMED} more" if len(rest) > _NAMED else ""
        names = ", ".join(rest[:_NAMED])
        lines += [f"  Ignored, because the catalogue has no such option: {names}{more}."]
    return lines


def _unless(meaning: Meaning | None) -> list[str]:
    """A line on the names that are not read and may change what is climbed."""
    names = told(meaning.may_change) if meaning else []
    if not names:
        return []
    more = f" and {len(names) - _FIRST} more" if len(names) > _FIRST else ""
    return [
        f"  This is as far as the options read here say: {', '.join(names[:_FIRST])}{more} may change it."
    ]


def _bias(explanation: Explanation) -> str:
    graded = (
        f" With graded rewards {explanation.family.graded}" if explanation.family.graded else ""
    )
    if explanation.unbiased:
        where = "Unbiased with rewards 0 and 1" if explanation.family.graded else "Unbiased"
        return f"{where}: the mean estimate is the gradient, whatever the pass rate.{graded}"
    assert explanation.mean_factor is not None
    pairs = list(zip(explanation.pass_rates, explanation.mean_factor, strict=True))
    shown = ", ".join(f"{readable(w, 4)} at p = {readable(p, 4)}" for p, w in _some(pairs))
    what = "prompts are reweighted by their pass rate"
    if explanation.weight and np.ptp(explanation.weight["w"]) < GIVEN:
        shown = f"{readable(pairs[0][1], 4)} at every pass rate"
        # A divisor computed from rewards is constant only if rewards take two values.
        what = "a rescaled learning rate" + " with rewards 0 and 1" * bool(
            explanation.family.graded
        )
    turned = ""
    if explanation.cosine is not None and len(pairs) > 1:
        turned = f"; its cosine to the gradient is {explanation.cosine:.4f}"
    return f"The mean estimate is w times the gradient of a prompt: {what}. w is {shown}{turned}.{graded}"


def _some(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most five of the pairs, evenly spaced."""
    places = np.linspace(0, len(pairs) - 1, min(len(pairs), 5)).round().astype(int)
    return [pairs[place] for place in places]


def _noise(explanation: Explanation) -> list[str]:
    """A sentence on the noise relative to RLOO and the oracle, and one on its size."""
    ratios = (
        (explanation.noise_to_rloo, "that of RLOO"),
        (explanation.noise_to_oracle, "that of the oracle"),
    )
    found = [f"{_times(value)}{other}" for value, other in ratios if value is not None]
    lines = []
    if found:
        best = ""
        if (least := explanation.best_noise_to_rloo) is not None:
            best = f"; the best unbiased table here has {_times(least)}RLOO's"
        lines += [
            f"  Noise over signal is {' and '.join(found)} at G = {explanation.group_size}{best}."
        ]
    size = ""
    if explanation.noise_to_signal is not None:
        unit = " E‖s‖²/‖∇J‖²" if explanation.assumed else ""
        size = f", noise over signal {readable(explanation.noise_to_signal, 4)}{unit}"
    return [
        *lines,
        f"  MSE {readable(explanation.mse or 0.0, 4)}, one prompt drawn at random{size}.",
    ]


def _reasons(explanation: Explanation) -> list[str]:
    family = explanation.family
    return [f"  {words}" for words in (family.noise, family.silent) if words]


def _times(ratio: float) -> str:
    """A ratio and "times", or an empty text if the ratio prints as 1."""
    shown = readable(ratio, 4)
    return "" if shown == "1" else f"{shown} times "


_CLIPPED = {
    True: "w and all numbers here include the cut; seldom solved prompts lose most",
    False: "the clipped advantages have no closed form here",
}


def _rest(explanation: Explanation, meaning: Meaning) -> list[str]:
    aggregation, known = meaning.aggregation, explanation.weight is not None
    scale = (
        ""
        if explanation.scale is None
        else f" Here it multiplies by {readable(explanation.scale, 4)}."
    )
    lines = [f"  {aggregation.title}. {aggregation.says}{scale}"]
    if meaning.cap:
        lines += [
            "  The ratio is capped at {} = {:g}, below 1, so the first step after sampling is scaled by "
            "that factor.".format(*meaning.cap)
        ]
    if meaning.clip:
        cut = not known or explanation.estimator.startswith("count-table")
        words = _CLIPPED[known] if cut else "none is larger here"
        lines += [f"  Advantages are clipped at ±{meaning.clip:g}: {words}."]
    lines += [f"  KL term: {term}." for term in meaning.penalties()]
    # The steps for which the numbers hold come before what may be left out.
    steps = (*over_turns(meaning), *meaning.step(), *meaning.reused(), *_again(explanation))
    lines += [f"  {line}" for line in (*steps, *meaning.beside())]
    return lines + [f"  {option}: off, because {reason}." for option, reason in meaning.off.items()]


def _again(explanation: Explanation) -> list[str]:
    """Sentences on the passes over the same outputs after the first."""
    meaning, shares, rates = explanation.meaning, explanation.reuse_bias, explanation.pass_rates
    if meaning is None or shares is None:
        return []
    passes, outputs = meaning.passes, meaning.outputs or explanation.group_size
    ends = sorted({int(np.argmin(rates)), int(np.argmax(rates))})
    known = ", ".join(f"{shares[x]:+.3g} η E‖s‖² at p = {readable(rates[x], 4)}" for x in ends)
    step = f"K = {outputs:g} outputs a step" + " (one group, the least)" * (not meaning.outputs)
    lines = [
        f"To first order in the learning rate η, {passes:g} passes are one step of rate {passes:g} η: they "
        f"do not lower the noise, as {passes:g} batches would. One pass at {passes:g} η has no bias and "
        f"takes 1/{passes:g} of the backward passes.",
        "The ratio does not make a later pass unbiased, because the policy was fitted to these rewards. The "
        f"bias of the last pass is about {passes - 1:g} η E‖s‖² (1-2p)/K of a prompt's gradient: along it on "
        f"hard prompts, against it on easy ones. With {step} this is {known}.",
    ]
    if (largest := max(map(abs, shares))) > GIVEN / outputs:
        unit, eta = ("η E‖s‖²", 1.0) if explanation.rate is None else ("E‖s‖²", explanation.rate)
        percent, noise = 0.01 / (largest * eta), 1 / (largest * eta * math.sqrt(outputs))
        at = "" if explanation.rate is None else f"At η = {readable(eta)} it "
        lines += [
            f"{at or 'It '}is below 1% of the gradient while {unit} < {readable(percent)}, and shorter than "
            f"the noise of a step while {unit} < {readable(noise)}."
        ]
    return [
        *lines,
        "(E‖s‖² is the mean squared norm of the score of an output. Assumed are plain gradient steps, "
        "leave-one-out advantages and scores of equal norm in many directions. Division by the deviation σ "
        "makes the bias about 1/σ times as large; with the divisor of Adam as a metric P, E⟨s, P s⟩ replaces "
        "E‖s‖². Of a problem, reuse_bias has the exact slope.)",
    ]


def curve(weight: dict[str, list[float]], pass_rates: Sequence[float]) -> list[str]:
    """A plot of w against the pass rate as text, with marks for the prompts below it."""
    height, width = 8, 61
    p, w = np.array(weight["pass_rate"]), np.array(weight["w"])
    low, high = min(0.0, float(w.min())), max(float(w.max()), 1.0)
    across = np.linspace(0, 1, width)
    rows = np.rint((np.interp(across, p, w) - low) / (high - low) * (height - 1)).astype(int)
    lines = []
    for row in range(height - 1, -1, -1):
        label = f"{low + (high - low) * row / (height - 1):8.3g}"
        marks = "".join("*" if place == row else " " for place in rows)
        lines.append(f"  {label} |{marks.rstrip()}")
    ticks = ["-"] * width
    for rate in pass_rates:
        ticks[round(rate * (width - 1))] = "^"
    lines.append(f"     w(p)  {''.join(ticks)}")
    lines.append(f"           0{'p':^{width - 2}}1")
    return lines


def plot_weight(
    axes: Axes | None,
    label: str,
    weight: dict[str, list[float]],
    pass_rates: list[float],
    factors: list[float],
) -> Axes:
    """Plot w against the pass rate, with the prompts marked."""
    axes = shown.axes_or_new(axes)
    axes.axhline(1.0, color="0.7", linewidth=1, label="expected reward: w = 1")
    rates, w = weight["pass_rate"], weight["w"]
    axes.plot(rates, w, label=label)
    axes.plot(pass_rates, factors, "o", markersize=4)
    axes.set(xlabel="pass rate p", ylabel="weight w(p)", xlim=(0, 1), ylim=(min(0, *w), None))
    axes.legend(frameon=False)
    return axes
