"""When conversations return, learnt from those that do."""
