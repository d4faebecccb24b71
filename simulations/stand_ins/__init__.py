"""Experiments on problems that take the bandits' place: a user's own, or networks'."""
