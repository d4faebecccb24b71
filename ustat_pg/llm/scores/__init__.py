"""Scores of completions, as norms and sketches from one pass.

The score of a completion is s = ∇θ log π(y | x), summed over its sampled tokens. The scores of N completions
of a model with d parameters have N d numbers, which do not fit in memory. The theory needs less: the norms
‖s_i‖², and inner products of different scores, for which a CountSketch of a few thousand numbers is unbiased.
All come from one forward and one backward pass, in which hooks record a layer's input and the gradient of its
output. From both, a layer's scores are formed, squared, sketched and dropped as soon as the gradient arrives.
Completions of several prompts are processed at once, in blocks that fit the memory.

``method="loop"`` differentiates one completion at a time. It does not depend on layers and works for any
model. The hooks are compared with it when they first run, on one completion, parameter by parameter.
"""

from ...validation import needed

with needed("the gradient of a language model", "llm"):
    from .kept import PromptScores
    from .passes import SKETCH, Asked, Scores

__all__ = ["SKETCH", "Asked", "PromptScores", "Scores"]
