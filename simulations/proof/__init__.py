"""Results proved by computer algebra, for every group size and every law of scores and rewards."""
