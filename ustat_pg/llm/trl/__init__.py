"""Trainers for Hugging Face's TRL, a monitor of the noise, and training runs."""
