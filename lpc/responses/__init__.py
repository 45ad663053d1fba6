"""Response caches without the gRPC service: keys, encryption, rules of what is cached, the store, and semantic hits."""
