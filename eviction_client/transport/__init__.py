"""The way to the sidecar: calls, messages, and the upload of tokenizers."""
