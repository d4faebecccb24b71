"""What counts as rounding: one tolerance for each meaning, in double precision, ε = 2⁻⁵² = 2.2e-16,
unless it is named SINGLE.
"""

OPERATION = 1e-15
"""Relative error of a number after a few operations: some 5 ε."""
SUM = 1e-14
"""Relative error of a sum over its terms' size: some 50 ε; a pairwise sum of n terms has at most ε log₂ n."""
DERIVED = 1e-12
"""Of what is made of such sums (differences, quotients, roots), over the size of what it is made of: 100
times theirs, since at each step errors add up and terms cancel."""
SQUARE = DERIVED**2
"""Of the square of such a number, over the square of that size."""
GIVEN = 1e-9
"""Of what holds exactly in theory (a sum of 1, symmetry, orthogonality), for numbers that come from elsewhere
and are good to nine digits."""
SINGLE = 1e-5
"""Of what is made of sums in single precision, ε = 6e-8, as DERIVED in double."""
SINGLE_GIVEN = 1e-4
"""Of what holds exactly in theory, for numbers of other code in single precision, as GIVEN in double."""
