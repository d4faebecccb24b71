"""Hugging Face's TRL: trainers, a monitor of the noise, and runs of these."""
