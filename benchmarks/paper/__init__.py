"""`python -m benchmarks paper`: tables and figures of Learned Prefix Caching (NeurIPS 2025) on conversations at hand."""
