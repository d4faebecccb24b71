"""The figures of the results, and the points in each."""
