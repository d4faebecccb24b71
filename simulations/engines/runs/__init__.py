"""Engines of whole training runs of softmax policies: one run is one replication."""
