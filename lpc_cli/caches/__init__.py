"""The response caches' commands: `lpc cache` and `lpc gateway`."""
