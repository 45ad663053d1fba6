"""From conversation logs to an exported model: datasets, embedding, head training, evaluation, export."""
