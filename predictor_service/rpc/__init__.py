"""The RPC surface: service, interceptors, requests, callers, TLS, traces."""
