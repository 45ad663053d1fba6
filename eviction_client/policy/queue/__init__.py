"""The free queue: the order in which blocks are evicted. It knows no rule, request or fit, only tables by class."""
