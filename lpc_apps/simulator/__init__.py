"""Replays requests against a prefix cache under many eviction policies; `value` and `reuse` are the client's own code."""
