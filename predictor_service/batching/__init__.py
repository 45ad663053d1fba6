"""From a conversation to the model's output: prepare, queue, batch, infer."""
