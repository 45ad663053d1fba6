import numpy as np
import pytest

from response_cache.semantic.index import PartitionIndex


def unit(draw: np.random.Generator, rows: int, dimensions: int = 64) -> np.ndarray:
    vectors = draw.normal(size=(rows, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_nearest_entries_of_a_partition_are_found() -> None:
    vectors = unit(np.random.default_rng(0), 200)
    index = PartitionIndex()
    for i, vector in enumerate(vectors):
        index.add(b"even" if i % 2 == 0 else b"odd", b"%d" % i, vector, expires_at=10.0)
    cosines = vectors @ vectors[7]
    order = [i for i in np.argsort(-cosines) if i % 2 == 0][:3]
    found = index.nearest(b"even", vectors[7], 3, now=0.0)
    assert [entry for entry, _ in found] == [b"%d" % i for i in order]
    assert [score for _, score in found] == pytest.approx(cosines[order].tolist(), abs=1e-6)
    assert index.nearest(b"other", vectors[7], 3, now=0.0) == []


def test_expired_entries_are_not_found_and_replaced_ones_once() -> None:
    a, b = unit(np.random.default_rng(1), 2)
    index = PartitionIndex()
    index.add(b"p", b"a", a, expires_at=5.0)
    index.add(b"p", b"b", b, expires_at=9.0)
    index.add(b"q", b"a", a, expires_at=5.0)
    assert [entry for entry, _ in index.nearest(b"p", a, 5, now=0.0)] == [b"b"]
    assert index.nearest(b"q", a, 1, now=5.0) == []
    assert index.expire(now=5.0) == 1
    assert len(index) == 1
    index.remove(b"a")
    index.remove(b"b")
    assert len(index) == 0
