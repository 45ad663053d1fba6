"""The response caches and their gateway: a product of its own. The sidecar starts without it."""
