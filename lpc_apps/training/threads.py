"""Limits the number of PyTorch's threads."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread, as a context manager or a decorator.

    With several threads on shared cores a small model is ten times slower, and sums are in another order.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
