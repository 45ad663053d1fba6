"""The prediction sidecar: requests in, batched inference, continuation probabilities out."""
