"""A scored pool, and its results for every group size."""
