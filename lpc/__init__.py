"""The base that sidecar, client and programs share: wire contract (`lpc.v1`), model, logs, response caches."""
