"""Names of requests, encryption, and tickets."""
