"""What became of predictions: the turns remembered, and the log of their labels."""
