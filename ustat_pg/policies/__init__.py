"""Policies: what turns parameters and a context into probabilities and scores."""

from .softmax import ArmLinearSoftmax, SharedLinearSoftmax, SoftmaxPolicy, TabularSoftmax

__all__ = ["ArmLinearSoftmax", "SharedLinearSoftmax", "SoftmaxPolicy", "TabularSoftmax"]
