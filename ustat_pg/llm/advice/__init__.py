"""Advice for language models: from a model or a log to a scored pool, and from the pool to advice."""
