"""Scores of completions: norms and sketches, from one pass.

The score of a completion is s = ∇θ log π(y | x), summed over its sampled tokens. A model of d
parameters has N d numbers in the scores of N completions, too many to hold. The theory asks for
less: the norms ‖s_i‖², and inner products of different scores, which a CountSketch of each in a few thousand
numbers gives without bias. All come from one forward and one backward pass, in which hooks catch what a layer
reads and the gradient of what it writes. When the gradient arrives a layer's scores are formed of both,
squared, sketched and dropped. Completions of several prompts go through at once, in blocks that fit the
memory.

``method="loop"`` differentiates one completion at a time. It knows nothing of layers, takes any
model, and the hooks are checked against it: the first time they run, on one completion,
parameter by parameter.
"""

from ...validation import needed

with needed("the gradient of a language model", "llm"):
    from .kept import PromptScores
    from .passes import SKETCH, Asked, Scores

__all__ = ["SKETCH", "Asked", "PromptScores", "Scores"]
