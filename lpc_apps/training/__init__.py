"""Training: embeds conversation logs, trains and evaluates heads, and exports models."""
