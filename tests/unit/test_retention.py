"""`lpc_retain_seconds` on its way from the plug-in to LMCache's coordinator: a real server, real HTTP."""

import time
from collections.abc import Callable, Iterator

import pytest
from pydantic import ValidationError

from eviction_client import ClientSettings
from eviction_client.retention import ATTEMPTS, WAITING, Retention
from tests.eventually import until
from tests.retaining import Coordinator

Serve = Callable[..., Coordinator]


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[Coordinator] = []

    def start(*statuses: int) -> Coordinator:
        running.append(Coordinator(*statuses))
        return running[-1]

    yield start
    for coordinator in running:
        coordinator.server.shutdown()
        coordinator.server.server_close()


def test_a_prompt_is_named_by_its_ids_model_and_salt_and_the_seconds_that_are_left(serve: Serve) -> None:
    coordinator = serve(200)
    retention = Retention(coordinator.url("lpc:s3cret@"), "/models/llama", after_s=0.05)
    retention.ask([1, 2, 3], 600.0, "tenant")
    until(lambda: retention.sent == 1)
    retention.close()
    ((path, authorization, body),) = coordinator.asked
    assert (path, authorization) == ("/lpc/retain", "Basic bHBjOnMzY3JldA==")
    assert 500.0 < body.pop("seconds") < 600.0
    assert body == {"model_name": "/models/llama", "token_ids": [1, 2, 3], "cache_salt": "tenant"}


def test_a_prompt_that_is_not_reported_yet_is_asked_for_again(serve: Serve) -> None:
    coordinator = serve(404, 404, 200)
    retention = Retention(coordinator.url(), "m", after_s=0.01)
    retention.ask([1], 600.0)
    until(lambda: retention.sent == 1)
    retention.close()
    assert len(coordinator.asked) == 3
    assert retention.failed == 0


def test_a_coordinator_that_is_being_restarted_is_asked_again(serve: Serve) -> None:
    coordinator = serve(200)
    retention = Retention(coordinator.url(), "m", after_s=0.3)
    coordinator.server.shutdown()
    coordinator.server.server_close()
    retention.ask([1], 600.0)
    time.sleep(0.5)  # the first attempt has found nobody
    again = Coordinator(503, 200, port=coordinator.server.server_port)
    until(lambda: retention.sent == 1)
    retention.close()
    again.server.shutdown()
    again.server.server_close()
    assert (len(again.asked), retention.failed) == (2, 0)


def test_what_stays_unknown_is_given_up_and_said_once_without_the_prompt(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = serve(404)
    retention = Retention(coordinator.url(), "m", after_s=0.01)
    retention.ask([424_242], 600.0)
    retention.ask([424_242], 600.0)
    until(lambda: retention.failed == 2)
    retention.close()
    assert len(coordinator.asked) == 2 * ATTEMPTS
    assert caplog.text.count("did not accept lpc_retain_seconds: HTTP 404") == 1
    assert "424242" not in caplog.text


def test_where_nobody_listens_nothing_is_raised_and_the_next_hint_is_tried() -> None:
    retention = Retention("http://127.0.0.1:9", "m", after_s=0.01)
    retention.ask([1], 600.0)
    until(lambda: retention.failed == 1)
    retention.ask([1], 600.0)
    until(lambda: retention.failed == 2)
    retention.close()


def test_hints_that_there_is_no_room_for_are_counted() -> None:
    retention = Retention("http://127.0.0.1:9", "m", after_s=600.0)
    for n in range(WAITING + 5):
        retention.ask([n], 600.0)
    assert retention.failed == 5
    retention.close()


@pytest.mark.parametrize("url", ["lmcache:9300", "http://", "http://host:9300/lpc/retain", "http://lpc:t@"])
def test_what_is_no_address_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_LMCACHE_URL", url)
    with pytest.raises(ValidationError, match="lmcache_url must be http://host:port"):
        ClientSettings()
