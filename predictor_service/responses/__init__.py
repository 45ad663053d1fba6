"""The response caches in the sidecar: who asks is known, what is found is checked, what is handed in is kept or refused."""
