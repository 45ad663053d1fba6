"""The gRPC server: service, interceptors, callers, TLS and traces."""
