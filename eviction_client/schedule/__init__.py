"""Which waiting request is served next. Tied to no eviction policy."""
