"""The controls of the page ``playground``; its numbers are made by ``closed_forms.js`` in the browser."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape

from IPython.display import HTML

from ustat_pg.catalogue import catalogue

ESTIMATORS = {
    name: catalogue().families[name.partition(":")[0]].title + numbers
    for name, numbers in {
        "grpo": "",
        "group-mean": "",
        "std": "",
        "std-ddof1": "",
        "others-std": "",
        "maxrl": "",
        "pass-at-k:2": ", k = 2",
        "bayes:1,1": ", Beta(1, 1)",
        "shrinkage:0.5,0.5": ", half way to 1/2",
        "vanilla": "",
    }.items()
} | {
    "oracle": "the oracle: knows the pass rate",
    "minimum-variance": "the best baseline of the prompt",
}
"""What can be chosen, as the catalogue calls it."""


@dataclass(frozen=True)
class Control:
    """A slider of the playground."""

    name: str
    label: str
    low: float
    high: float
    step: float
    start: float
    meaning: str

    def html(self) -> str:
        """The label, the slider, its value and what it means."""
        return (
            f'<div class="playground-control"><label for="play-{self.name}">{escape(self.label)} '
            f'<output for="play-{self.name}">{self.start:g}</output></label>'
            f'<input type="range" id="play-{self.name}" name="{self.name}" min="{self.low:g}" '
            f'max="{self.high:g}" step="{self.step:g}" value="{self.start:g}" '
            f'aria-describedby="play-{self.name}-meaning" autocomplete="off">'
            f'<small id="play-{self.name}-meaning">{escape(self.meaning)}</small></div>'
        )


CONTROLS = (
    Control("p", "Pass rate p", 0.01, 0.99, 0.01, 0.2, "how often the policy solves a prompt"),
    Control("G", "Group size G", 2, 64, 1, 8, "outputs drawn for a prompt"),
    Control(
        "spread", "Spread of norms", 0, 2, 0.05, 0.5, "of ‖s‖²: standard deviation over the mean"
    ),
    Control(
        "correlation",
        "Correlation of norm and reward",
        *(-1, 1, 0.05, 0),
        "0 is Assumption 2; below it right outputs have short scores",
    ),
    Control(
        "signal", "Strength of the gradient", 0.01, 1, 0.01, 0.1, "‖g‖² over the most it could be"
    ),
    Control(
        "agreement",
        "Agreement of prompts",
        *(0, 1, 0.01, 0.3),
        "cosine between the gradients of two prompts",
    ),
)

PRESETS = {
    "A hard prompt": {"p": 0.05, "spread": 0.5, "correlation": 0, "signal": 0.1, "agreement": 0.3},
    "A nearly solved one": {
        "p": 0.9,
        "spread": 1,
        "correlation": -0.9,
        "signal": 0.1,
        "agreement": 0.3,
    },
    "A fair coin": {"p": 0.5, "spread": 0, "correlation": 0, "signal": 1, "agreement": 1},
    "Prompts that pull apart": {
        "p": 0.5,
        "spread": 0.5,
        "correlation": 0,
        "signal": 0.5,
        "agreement": 0,
    },
}
"""Settings worth a look, by the words on their buttons."""

RESULTS = {
    "weight": "w(p): mean estimate over the gradient",
    "mse": "MSE of one group",
    "over-oracle": "noise over the oracle's",
    "over-rloo": "noise over RLOO's",
    "silent": "groups with equal rewards",
    "best": "best G of this estimator",
    "near": "within 5% of it",
    "real": "RLOO's best real G, 1 + √(c₃/c₁)",
}
"""What is shown, by the names that the script fills in."""

PLOTS = {
    "mse": "MSE of one group against G",
    "w": "w against the pass rate",
    "noise": "Noise at equal budgets against G",
}


def playground() -> HTML:
    """The whole page but its text; without JavaScript a sentence says what is missing."""
    options = "".join(
        f'<option value="{escape(name)}">{escape(title)}</option>'
        for name, title in ESTIMATORS.items()
    )
    presets = "".join(
        f"<button type=\"button\" data-set='{escape(json.dumps(values))}'>{escape(words)}</button>"
        for words, values in PRESETS.items()
    )
    results = "".join(
        f'<div><dt>{escape(words)}</dt><dd data-result="{name}"></dd></div>'
        for name, words in RESULTS.items()
    )
    plots = "".join(
        f"<figure><figcaption>{escape(words)}</figcaption>"
        f'<svg data-plot="{name}" viewBox="0 0 320 220" role="img" aria-label="{escape(words)}"></svg>'
        "</figure>"
        for name, words in PLOTS.items()
    )
    return HTML(
        '<form class="playground" id="playground-form" hidden>'
        '<div class="playground-control"><label for="play-estimator">Estimator</label>'
        f'<select id="play-estimator" name="estimator" autocomplete="off">{options}</select></div>'
        f'<div class="playground-controls">{"".join(control.html() for control in CONTROLS)}</div>'
        f'<p class="playground-presets">Try: {presets}</p>'
        '<p class="playground-limit" role="status"></p>'
        f'<dl class="playground-results" aria-live="polite">{results}</dl>'
        f'<div class="playground-plots">{plots}</div>'
        '<p class="playground-key"><span class="line-own">this estimator</span> '
        '<span class="line-rloo">RLOO</span> <span class="line-oracle">oracle</span></p>'
        '<details class="playground-python"><summary>The same in Python</summary>'
        '<pre tabindex="0"><code></code></pre></details></form>'
        '<noscript><p class="playground-missing">This page computes in your browser: it needs '
        "JavaScript. <code>ustat-pg explain</code> prints the same numbers.</p></noscript>"
        '<script src="_static/closed_forms.js"></script>'
        '<script src="_static/playground.js"></script>'
    )
