"""A record of an estimator's effect on rewards 0 and 1, in words and as JSON."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..catalogue import Family, Meaning, catalogue, short_name
from ..catalogue.specs import NEAR
from ..catalogue.turns import over_turns
from ..display import shown
from ..predictions import even_reuse_bias
from ..rounding import GIVEN
from ..validation import InputError, nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..testing.tables import Namesake

_WIDTH, _LEAST = 100, 40
"""The most characters of a printed line, and the fewest on a narrow terminal."""

_NAMED = 12
"""The most ignored names that are printed; JSON has all of them."""


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
        family, meaning = self.family, self.meaning
        known = self.weight is not None
        drawn = curve(self.weight, self.pass_rates) if self.weight else []
        silent = f"{self.frac_reward_zero_std:.1%} of groups of {self.group_size}"
        unchanged = {} if meaning is None else meaning.unchanged()
        still = [f"  {', '.join(names)}: {reason}." for reason, names in unchanged.items()]
        elsewhere = [f"  {line}" for line in self.called]
        assumptions = [
            "(Pass rates alone say nothing about scores. These numbers assume equal norms, E‖s‖² = 1, and a "
            f"small gradient{self._gradients()}; errors are in units of E‖s‖². If you give a problem, its "
            "own scores are used.)"
        ]
        parts = [
            _heading(self),
            ["What it climbs", f"  {family.climbs}", *drawn],
            ["Bias", f"  {_bias(self)}"] if known else [],
            ["Noise", f"  {family.noise}", *(_noise(self) if known else ())],
            ["Silent groups", f"  {silent} have equal rewards here. {family.silent}"],
            [] if meaning is None else ["The rest of the loss", *_rest(self, meaning)],
            ["What changes nothing", f"  {family.nothing}", *still],
            ["The same elsewhere", *elsewhere] if elsewhere else [],
            [f"Advice: {family.advice}"],
            assumptions if self.assumed and known else [],
        ]
        return "\n\n".join("\n".join(map(wrapped, part)) for part in parts if part)

    def _gradients(self) -> str:
        """What cosine and noise assume of the gradients of several prompts."""
        if len(self.pass_rates) < 2:
            return ""
        squares = (
            "‖g‖² proportional to p(1-p)" if self.gradient_norms is None else "the given norms"
        )
        return f" (with several pass rates: gradients g that are orthogonal, with {squares})"

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
            plain["releases"] = list(meaning.releases)
            plain["passed_over"] = list(meaning.passed_over)
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
    lines = []
    if meaning is not None:
        title = f"{meaning.framework.title} {meaning.written}".rstrip()
        lines += [f"{title}, G = {explanation.group_size}: {meaning.row.name}", *passed(meaning)]
    lines += [f"{explanation.estimator}: {family.title}"]
    if explanation.function:
        lines += [f"  {_found(explanation)}"]
    lines += [f"  {family.formula}", f"  {family.what}"]
    if meaning is None and not explanation.function and family.elsewhere:
        lines += [f"  {family.elsewhere}"]
    if meaning is not None:
        row = meaning.row
        if explanation.group_size == 1:
            (grouping,) = meaning.framework.of_kind("group size")
            default = f" {grouping.name} is 1 by default." if grouping.default == "1" else ""
            lines += [
                "  G = 1: there are no other outputs to compare an output with. Is that intended?"
                f"{default} Write {short_name(grouping.name)}=G."
            ]
        if row.factor != "1":
            lines += [f"  Here it is multiplied by {row.factor} = {meaning.factor:.4g}."]
        if row.epsilon:
            lines += [f"  {row.epsilon:g} is added to the divisor; the numbers here ignore it."]
        if row.one_output:
            lines += [f"  The advantage in a group of one output is {row.one_output}."]
        framework = meaning.framework
        source = f"{framework.repository}@{framework.commit} {row.source}"
        lines += [f"  Source: {source}, {framework.checked(row)}."]
        lines += [f"  {note}" for note in framework.notes]
    return lines


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
    """Lines on the release with these defaults, and on ignored names, those similar to options first."""
    names, releases = meaning.passed_over, [f"  {sentence}" for sentence in meaning.releases]
    if not names:
        return releases
    known = [option.rpartition(".")[2] for option in meaning.framework.options]
    alike = [name for name in names if nearest(name.rpartition(".")[2], known, cutoff=NEAR)]
    first = [*alike, *(name for name in names if name not in alike)][:_NAMED]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    words = f"  Ignored, because the catalogue has no such option: {', '.join(first)}{more}."
    return [*releases, words]


def _bias(explanation: Explanation) -> str:
    graded = (
        f" With graded rewards {explanation.family.graded}" if explanation.family.graded else ""
    )
    if explanation.unbiased:
        where = "None with rewards 0 and 1" if explanation.family.graded else "None"
        return f"{where}: the mean estimate is the gradient, whatever the pass rate.{graded}"
    assert explanation.mean_factor is not None
    pairs = list(zip(explanation.pass_rates, explanation.mean_factor, strict=True))
    shown = ", ".join(f"{w:.4g} at p = {p:.4g}" for p, w in _some(pairs))
    same = bool(np.ptp(explanation.weight["w"]) < GIVEN) if explanation.weight else False
    what = "prompts are reweighted by their pass rate"
    if same:
        # A divisor computed from rewards is constant only if rewards take two values.
        what = "a rescaled learning rate" + " with rewards 0 and 1" * bool(
            explanation.family.graded
        )
    turned = ""
    if explanation.cosine is not None and len(pairs) > 1:
        turned = f"; its cosine to the gradient is {explanation.cosine:.4f}"
    return f"The mean estimate is w times the gradient of a prompt: {what}. w is {shown}{turned}.{graded}"


def _some(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most nine of the pairs, evenly spaced."""
    places = np.linspace(0, len(pairs) - 1, min(len(pairs), 9)).round().astype(int)
    return [pairs[place] for place in places]


def _noise(explanation: Explanation) -> list[str]:
    unit = " E‖s‖²/‖∇J‖²" if explanation.assumed else ""
    lines = [f"  MSE {explanation.mse:.4g}, one prompt drawn at random"]
    if explanation.noise_to_signal is not None:
        lines += [f"  noise over signal {explanation.noise_to_signal:.4g}{unit}"]
    for value, other in (
        (explanation.noise_to_rloo, "RLOO"),
        (explanation.noise_to_oracle, "the oracle"),
    ):
        if value is not None:
            lines += [f"  {_times(value)}that of {other} at G = {explanation.group_size}"]
    if explanation.best_noise_to_rloo is not None:
        lines += [
            f"  the best unbiased table here has {_times(explanation.best_noise_to_rloo)}RLOO's"
        ]
    return lines


def _times(ratio: float) -> str:
    """A ratio and "times", or an empty text if the ratio prints as 1."""
    shown = f"{ratio:.4g}"
    return "" if shown == "1" else f"{shown} times "


_CLIPPED = {
    True: "w and all numbers here include the cut; seldom solved prompts lose most",
    False: "the clipped advantages have no closed form here",
}


def _rest(explanation: Explanation, meaning: Meaning) -> list[str]:
    aggregation, known = meaning.aggregation, explanation.weight is not None
    scale = "" if explanation.scale is None else f" Here it multiplies by {explanation.scale:.4g}."
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
    lines += [
        f"  {line}"
        for line in (*meaning.step(), *meaning.reused(), *_again(explanation), *meaning.beside())
    ]
    lines += [f"  KL, {term}." for term in meaning.penalties()]
    return lines + [f"  {line}" for line in over_turns(meaning)]


def _again(explanation: Explanation) -> list[str]:
    """Sentences on the passes over the same outputs after the first."""
    meaning, shares, rates = explanation.meaning, explanation.reuse_bias, explanation.pass_rates
    if meaning is None or shares is None:
        return []
    passes, outputs = meaning.passes, meaning.outputs or explanation.group_size
    ends = sorted({int(np.argmin(rates)), int(np.argmax(rates))})
    known = ", ".join(f"{shares[x]:+.3g} η E‖s‖² at p = {rates[x]:.4g}" for x in ends)
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
        at = "" if explanation.rate is None else f"At η = {eta:g} it "
        lines += [
            f"{at or 'It '}is below 1% of the gradient while {unit} < {percent:.3g}, and shorter than the "
            f"noise of a step while {unit} < {noise:.3g}."
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


def wrapped(line: str) -> str:
    """The line, wrapped to the width of the terminal, or of a page."""
    width = max(min(_WIDTH, shown.width() or _WIDTH), _LEAST)
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False)
    wrapper.break_on_hyphens = False
    return wrapper.fill(line)
