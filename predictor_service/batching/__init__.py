"""From user turns to predictions: prepare, queue, batch, infer."""
