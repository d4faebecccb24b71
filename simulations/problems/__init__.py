"""The problems on which claims are checked: made up, generated from the seed, or real."""

from .bandits import BanditEntry, mse_of, spread, word
from .entry import Entry
from .suite import Suite

__all__ = ["BanditEntry", "Entry", "Suite", "mse_of", "spread", "word"]
