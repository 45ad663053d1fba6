"""How many threads PyTorch may use."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread, as a context or a decorator; then as before.

    Matrices of a small model are ten times as slow on several threads that share their cores, and sum in another order.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
