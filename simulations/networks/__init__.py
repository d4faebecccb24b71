"""Experiments on networks, which have no optimum within reach: prefix policies and transformers."""
