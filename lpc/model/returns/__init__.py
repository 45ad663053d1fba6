"""The return model: when conversations return, learnt from those that do."""
