"""Half-widths of intervals if no rival needs smaller ones, as shares of the predicted value or of
its scale.

Enumeration does not depend on them. The cost of draws grows as their inverse square: each is as small as
about a second of draws allows, for a quantity with that noise.
"""

from __future__ import annotations

PROBABILITY = 0.01
"""A probability from draws of normal deviates, which are very cheap."""

LAW = 0.0125
"""The distance of a gap's law from a predicted one, with the band from about 10⁵ runs."""

TRANSFORM = 0.02
"""A transform of a gap's law, which lies between 0 and 1."""

TWO_LAWS = 0.04
"""The distance of two estimators' laws, each with its own band."""

FINE = 0.05
"""A number extrapolated from runs of several lengths, or a figure with few digits."""

ATTAINED = 0.06
"""A bound that is attained, because constants vary by this share on the ball of the runs."""

COARSE = 0.2
"""A squared error, or an eigenvalue or minimiser computed from several."""

ORDER = 0.25
"""An order or a slope, if its rivals differ by half of it."""

LOOSE = 0.3
"""A place between measured group sizes, or a small difference of large numbers."""

FAR_ORDER = 0.4
"""An order, if its rivals differ by a whole one."""

ROUGH = 0.5
"""Half the distance to a rival value of 0."""

OF_RUNS = 0.6
"""A difference of two mean gaps of whole runs, if its rivals are far away."""

ONE_SIZE, AMONG = 1.5, 2.0
"""A group size among measured ones, or a limit of whole runs: enumeration decides, and
the intervals must only not contradict it.
"""
