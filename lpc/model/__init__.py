"""Conversations, features, arrivals, reuse curves, and model artefacts with their versions; independent of gRPC and engines."""
