"""Readers of logs: traces with times, and datasets of conversations."""
