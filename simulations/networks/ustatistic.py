"""Lemma 1 on networks: as on bandits, at the prompts of token problems."""

from ..ustatistic import STEM, claim, curves

__all__ = ["STEM", "claim", "curves"]
