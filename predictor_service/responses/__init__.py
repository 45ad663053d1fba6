"""The response caches' service in the sidecar."""
