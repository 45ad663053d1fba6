"""Logs that people have: traces with times, datasets of conversations, the records they are made of."""
