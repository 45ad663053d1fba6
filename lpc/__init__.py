"""The `lpc` command and, under `lpc.v1`, the generated wire contract."""
