"""Replays requests against a prefix cache under many eviction policies; `plugin` and `plugin-sidecar` run `eviction_client`."""
