"""The client of the response caches without a sidecar, or with one that does not respond."""

import socket
from collections.abc import Iterator

import pytest

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.wire.access import Access
from lpc.wire.certificates import CertificateError
from response_cache.bodies import question
from response_cache.client import REST_S, SILENCES, CacheError, CircuitBreaker, ResponseCacheClient
from testing.processes import free_port

QUESTION = question({"model": "m", "messages": [{"role": "user", "content": "hi"}]})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def broken() -> Access:
    raise CertificateError("ca.pem holds no certificate")


@pytest.mark.parametrize("kind", ["away", "silent", "broken"])
async def test_a_failed_lookup_is_a_miss(kind: str, silent: str) -> None:
    address = silent if kind == "silent" else f"127.0.0.1:{free_port()}"
    client = ResponseCacheClient(address, access=broken if kind == "broken" else Access)
    for _ in range(SILENCES + 2):
        assert (await client.lookup(QUESTION)).miss.reason == pb.REASON_UNAVAILABLE
    assert (await client.wait_for_answer(QUESTION, 0.01)).miss.reason == pb.REASON_UNAVAILABLE
    assert client.silent == (kind == "silent")
    if kind != "silent":
        assert (await client.store(pb.StoreRequest(request=QUESTION))).refusal == "unavailable"
        with pytest.raises(CacheError, match=r"ca\.pem" if kind == "broken" else "no sidecar answers at"):
            await client.stats(pb.StatsRequest())
    await client.close()


def test_the_circuit_breaker_allows_one_request_per_interval_until_the_sidecar_responds() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    for _ in range(SILENCES):
        assert breaker.allows()
        breaker.timed_out()
    assert not breaker.allows()
    clock.now = REST_S
    assert [breaker.allows() for _ in range(5)] == [True, False, False, False, False]
    breaker.responded()
    assert all(breaker.allows() for _ in range(5))
