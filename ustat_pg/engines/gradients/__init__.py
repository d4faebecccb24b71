"""Engines of gradients at fixed parameters: one minibatch is one replication."""
