import pytest

from lpc_apps.lmcache.events import KeyChain

blake3 = pytest.importorskip("blake3")

ROOT = "7e3eff9ef7613a50340eb12677ee03b83ac759fcba9bb32705f07248d56d473b"
RECORDED = [
    "d526d88f0c387e4049f866a4c572cbf658276fcae250b069051fd1fff3ad0579",
    "8be5f115945ff3c4eb943172f8edfdcdf3432274c3d3dbd2436fed9a9fe494f5",
    "0d222b5d11d1bd5f86f5d8ff77045f60106e39ef638e2cba3f208dd28d34d201",
]
"""Of LMCache 0.5.6: TokenHasher(256, "blake3"), its none_hash and compute_chunk_hashes(range(1000, 1800))."""


def test_hashes_equal_those_of_lmcache() -> None:
    chain = KeyChain()
    assert chain.root.hex() == ROOT
    assert [h.hex() for h in chain.hashes(range(1000, 1800), 256)] == RECORDED
