"""The return model in service: its input, refits, saved state and published curves."""
