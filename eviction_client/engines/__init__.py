"""Adapters that put the eviction order into serving engines."""
