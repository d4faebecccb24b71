"""Training runs of networks, by torch: one run is one replication."""
