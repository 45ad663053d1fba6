"""Stores of per-block scores, shared by the fleet or private to the process."""
