"""The response caches' gRPC service, in the sidecar or in a process of its own."""
