"""The gRPC server: service, interceptors, callers and TLS."""
