import asyncio
from collections.abc import Iterable

import numpy as np
import pytest

from lpc.responses.semantic.index import PartitionIndex


def unit(draw: np.random.Generator, rows: int, dimensions: int = 64) -> np.ndarray:
    vectors = draw.normal(size=(rows, dimensions)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_nearest_is_found_by_cosine_and_in_its_partition_only() -> None:
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


def test_what_ended_is_not_found_and_what_was_replaced_is_found_once() -> None:
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


@pytest.mark.parametrize("dead", [0, 300])
async def test_a_graph_finds_what_a_scan_finds_and_so_it_is_while_the_graph_is_built(dead: int) -> None:
    pytest.importorskip("usearch")
    draw = np.random.default_rng(2)
    vectors = unit(draw, 3000, 32)
    graph, scan = PartitionIndex(graph_from=1000), PartitionIndex(graph_from=10**9)

    def add(numbers: Iterable[int], to: int = 0) -> None:
        for i in numbers:
            for index in (graph, scan):
                index.add(b"p", b"%d" % i, vectors[(i + to) % 3000], expires_at=float(i < 3000 - dead))

    def remove(numbers: Iterable[int]) -> None:
        for i in numbers:
            graph.remove(b"%d" % i)
            scan.remove(b"%d" % i)

    add(range(2000))
    growing = asyncio.get_running_loop().create_task(graph.grow())
    turns = 0
    while not growing.done():
        await asyncio.sleep(0)
        turns += 1
        if turns == 1:
            remove(range(0, 100, 2))
            add(range(2000, 2200))
            add(range(1, 50, 2), to=500)  # replaced by other vectors
        query = vectors[turns % 2000]
        assert [entry for entry, _ in graph.nearest(b"p", query, 1, 0.5)] == [
            entry for entry, _ in scan.nearest(b"p", query, 1, 0.5)
        ]
    await growing
    assert turns > 1
    assert graph.graphs == 1
    add(range(2200, 3000))
    remove(range(100, 200, 2))
    queries = vectors[:300] + 0.1 * unit(draw, 300, 32)
    same = sum(graph.nearest(b"p", q, 1, 0.5)[0][0] == scan.nearest(b"p", q, 1, 0.5)[0][0] for q in queries)
    assert same >= 295
    assert not any(int(entry) % 2 == 0 and int(entry) < 200 for entry, _ in graph.nearest(b"p", vectors[0], 50, 0.5))
