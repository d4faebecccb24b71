"""Rollouts and their rewards: sampled here, read from files, or from the logs of trainers."""
