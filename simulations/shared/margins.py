"""Half-widths that intervals need where no rival needs less, as shares of what is predicted or of
its scale.

Enumeration is sharp whatever they are. Draws cost as the square of their inverse: each is about as small as
a second of draws makes it, for a quantity with so much noise.
"""

from __future__ import annotations

PROBABILITY = 0.01
"""A probability by draws of normal deviates, which cost next to nothing."""

LAW = 0.0125
"""The distance of a gap's law from a predicted one: a band of some 10⁵ runs."""

TRANSFORM = 0.02
"""A transform of a gap's law, which lies between 0 and 1."""

TWO_LAWS = 0.04
"""The distance of two estimators' laws, each in a band of its own."""

FINE = 0.05
"""A number extrapolated from runs of several lengths, or a figure with few digits."""

ATTAINED = 0.06
"""A bound that is attained: constants vary by as much on the ball of the runs."""

COARSE = 0.2
"""A squared error, or an eigenvalue or a least place made of several."""

ORDER = 0.25
"""An order or a slope, whose rivals are half of it away."""

LOOSE = 0.3
"""A place between group sizes that are measured, or a small difference of large numbers."""

FAR_ORDER = 0.4
"""An order whose rivals are a whole one away."""

ROUGH = 0.5
"""Half the distance to a rival that says 0."""

OF_RUNS = 0.6
"""A difference of two mean gaps of whole runs, whose rivals are far away."""

ONE_SIZE, AMONG = 1.5, 2.0
"""A group size among some that are measured, or a limit that whole runs tend to: enumeration decides, and
intervals only must not contradict it.
"""
