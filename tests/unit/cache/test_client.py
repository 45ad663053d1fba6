"""Clients of the response caches without a sidecar, or with one that does not respond."""

import socket
from collections.abc import Iterator

import pytest

from benchmarks.processes import free_port
from lpc.cache.bodies import question
from lpc.cache.client import REST_S, SILENCES, AsyncResponseCacheClient, CacheError, CircuitBreaker, ResponseCacheClient
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.wire.access import Access
from lpc.wire.certificates import CertificateError

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
    access = broken if kind == "broken" else Access
    one = ResponseCacheClient(address, access=access)
    other = AsyncResponseCacheClient(address, access=access)
    try:
        for _ in range(SILENCES + 2):
            for answer in (one.lookup(QUESTION), await other.lookup(QUESTION)):
                assert answer.miss.reason == pb.REASON_UNAVAILABLE
        assert one.follow(QUESTION, 0.01).miss.reason == pb.REASON_UNAVAILABLE
        assert (await other.follow(QUESTION, 0.01)).miss.reason == pb.REASON_UNAVAILABLE
        assert other.silent == (kind == "silent")
        if kind != "silent":
            assert one.store(pb.StoreRequest(request=QUESTION)).refusal == "unavailable"
            assert (await other.store(pb.StoreRequest(request=QUESTION))).refusal == "unavailable"
            with pytest.raises(CacheError, match=r"ca\.pem" if kind == "broken" else "no sidecar answers at"):
                one.stats(pb.StatsRequest())
            with pytest.raises(CacheError):
                await other.feedback(pb.FeedbackRequest())
    finally:
        one.close()
        await other.close()


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


def test_a_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(ValueError):
        question({"model": "m", "messages": [{"role": "user", "content": "\ud800"}]})
