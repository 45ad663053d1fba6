"""Clients of the sidecar's response caches. `lpc.cache.v1` holds the stubs, generated from `proto/lpc/cache/v1`."""
