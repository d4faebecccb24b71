"""The records that problems produce and predictions read."""
