"""Simulated hit rates of the plug-in against other eviction policies, as on the benchmark pages. One module per command."""
