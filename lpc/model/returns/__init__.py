"""When conversations return, learnt from those that do; and what that is worth in a cache: seconds of credit."""
