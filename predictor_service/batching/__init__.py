"""From a conversation to what the model says of it: prepare, queue, batch, infer."""
