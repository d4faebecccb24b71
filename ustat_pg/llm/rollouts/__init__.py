"""Rollouts and their rewards, from sampling, from files, or from the logs of trainers."""
