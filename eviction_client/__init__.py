"""The thin client inside a serving engine: score, queue, predictor stub, metadata stores."""
