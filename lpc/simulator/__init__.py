"""Replays requests against a prefix cache under many eviction policies, on the client's own queue and score."""
