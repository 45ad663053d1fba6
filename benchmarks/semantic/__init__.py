"""Pairs of questions replayed through the semantic tier: how much it serves, and how much of that is wrong."""
