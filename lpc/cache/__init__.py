"""The response caches' wire contract, generated into `v1` from `proto/lpc/cache/v1`."""
