"""Response caches without a wire: keys, sealing, what is never kept, the store, and what evidence allows."""
