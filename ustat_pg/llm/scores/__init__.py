"""Scores of completions: norms, weighted sums and sketches, from one pass.

The score of a completion is s = ∇θ log π(y | x), summed over its sampled tokens. A model of d
parameters has N d numbers in the scores of N completions, too many to hold. The theory asks for
less: the norms ‖s_i‖², and inner products of a few weighted sums of scores, within a prompt and between
prompts. All come from one forward and one backward pass, in which hooks catch what a layer reads and
the gradient of what it writes. When the gradient arrives a layer's norms and sums are made of both,
by products of tokens or by scores that are formed, whichever takes less time; then they are dropped.
Completions of several prompts go through at once, in blocks that fit the memory.
Sums of different prompts meet in a CountSketch of a few thousand numbers.

``method="loop"`` differentiates one completion at a time. It knows nothing of layers, takes any
model, and the hooks are checked against it: the first time they run, on one completion,
parameter by parameter.
"""

from ...validation import needed

with needed("the gradient of a language model", "llm"):
    from .kept import PromptScores
    from .passes import SKETCH, Asked, Scores

__all__ = ["SKETCH", "Asked", "PromptScores", "Scores"]
