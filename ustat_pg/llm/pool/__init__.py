"""A scored pool, and what it says about every group size."""
