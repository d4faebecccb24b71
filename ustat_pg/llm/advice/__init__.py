"""From a model or a log to a pool, and from the pool to advice."""
