"""Waiting requests on their way from the plug-in to LMCache's coordinator: a real server, real HTTP."""

from collections.abc import Iterator

import pytest

from eviction_client import announce
from eviction_client.announce import Announcer, Prompt
from tests.eventually import until
from tests.retaining import Coordinator


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    made = Coordinator(200)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "GATHER_S", 0.02)


def test_a_request_is_sent_with_its_tokens_once_and_no_more_when_it_is_served(coordinator: Coordinator) -> None:
    announcer = Announcer(coordinator.url("lpc:s3cret@"), "/models/llama")
    announcer.wait("a", [Prompt([1, 2, 3], "tenant")])
    until(lambda: announcer.sent == 1)
    announcer.wait("b", [Prompt([4], "")])
    until(lambda: announcer.sent == 2)
    announcer.served("a")
    announcer.served("never waited")
    until(lambda: coordinator.asked[-1][2]["requests"] == [{"request_id": "b"}])
    announcer.served("b")
    until(lambda: coordinator.asked[-1][2]["requests"] == [])
    announcer.close()
    (path, authorization, body), (_, _, second), *_ = coordinator.asked
    assert (path, authorization, body["model_name"]) == ("/lpc/waiting", "Basic bHBjOnMzY3JldA==", "/models/llama")
    assert body["requests"] == [{"request_id": "a", "token_ids": [1, 2, 3], "cache_salt": "tenant"}]
    assert second["requests"] == [{"request_id": "a"}, {"request_id": "b", "token_ids": [4], "cache_salt": ""}]
    assert len({asked[2]["engine"] for asked in coordinator.asked}) == 1


def test_a_request_that_is_served_at_once_is_not_sent(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "GATHER_S", 0.3)
    announcer = Announcer(coordinator.url(), "m")
    announcer.wait("a", [Prompt([1], "")])
    announcer.served("a")
    announcer.wait("b", [Prompt([2], "")])
    until(lambda: bool(coordinator.asked))
    announcer.close()
    assert [request["request_id"] for request in coordinator.asked[0][2]["requests"]] == ["b"]


def test_only_those_that_came_first_are_sent(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "GATHER_S", 0.3)
    announcer = Announcer(coordinator.url(), "m")
    for number in range(announce.ANNOUNCED + 5):
        announcer.wait(number, [Prompt([number], "")])
    until(lambda: bool(coordinator.asked))
    assert [request["request_id"] for request in coordinator.asked[0][2]["requests"]] == [*map(str, range(announce.ANNOUNCED))]
    announcer.served(0)
    until(lambda: len(coordinator.asked) == 2)
    announcer.close()
    assert coordinator.asked[1][2]["requests"][-1] == {
        "request_id": str(announce.ANNOUNCED),
        "token_ids": [announce.ANNOUNCED],
        "cache_salt": "",
    }


def test_a_coordinator_that_is_away_is_reported_once_and_sent_all_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    away = Coordinator(200)
    url, port = away.url(), away.server.server_address[1]
    away.server.shutdown()
    away.server.server_close()
    announcer = Announcer(url, "m")
    announcer.wait("a", [Prompt([424242], "")])
    until(lambda: announcer.failed == 1)
    announcer.wait("b", [Prompt([1], "")])
    until(lambda: announcer.failed == 2)
    back = Coordinator(200, port=port)
    announcer.wait("c", [Prompt([2], "")])
    until(lambda: announcer.sent == 1)
    announcer.close()
    assert all("token_ids" in request for request in back.asked[0][2]["requests"])
    assert len(caplog.records) == 1 and "424242" not in caplog.text
    back.server.shutdown()
    back.server.server_close()
