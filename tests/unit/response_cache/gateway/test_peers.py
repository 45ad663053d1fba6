"""Gateways that share their requests have the same beliefs; other messages change nothing."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc.wire.redis_connection import Connection
from lpc_apps.routing.prompt import Prompt, prompt_of
from lpc_apps.routing.router import Router
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.peers import LATE_S, SILENT_S, Peers

SECRET = b"s" * 32
NAMES = ("http://a", "http://b", "http://c")


class Gateway:
    """A gateway's router and its peers, at a clock that the test moves."""

    def __init__(self, names: Sequence[str] = NAMES, secret: bytes = SECRET) -> None:
        self.now = 100.0
        self.router = Router(names)
        self.metrics = Metrics()
        connection = Connection("redis://127.0.0.1:1/0")
        self.peers = Peers(
            *(connection, self.router, None, names, secret, self.metrics), clock=lambda: self.now, wall=lambda: self.now
        )

    def send(self, prompt: Prompt, engine: int, *, streamed: bool = True) -> Any:
        sending = self.router.sent(prompt, self.router.known.match(prompt), engine, self.now, streamed=streamed)
        self.peers.sent(sending, held=False, left=None)
        return sending

    def counted(self, what: str) -> float:
        return self.metrics.registry.get_sample_value("lpc_gateway_peer_messages_total", {"what": what}) or 0.0

    def waiting(self) -> list[int]:
        return [engine.missing for engine in self.router.engines]


def prompt(*texts: str, name: bytes | None = None) -> Prompt:
    return prompt_of(b"scope", [(text.encode() * 100, at % 2 == 1) for at, text in enumerate(texts)], name)


def test_a_conversations_next_turn_is_at_home_at_the_other_gateway() -> None:
    one, two = Gateway(), Gateway()
    first, second = prompt("system", name=b"n"), prompt("system", "reply", "question", name=b"n")
    sending = one.send(first, 2)
    two.peers.receive(one.peers.take())
    assert two.waiting() == one.waiting() and two.waiting()[2] > 0
    match = two.router.known.match(second)
    assert match == one.router.known.match(second)._replace(conversation=match.conversation)
    assert (match.home, match.engine) == (2, 2) and match.held > 0
    one.router.first_token(sending, one.now)
    one.peers.first(sending)
    two.peers.receive(one.peers.take())
    assert two.waiting() == one.waiting() == [0, 0, 0]


def test_engines_in_another_order_are_the_same_engines() -> None:
    one, two = Gateway(), Gateway((NAMES[2], NAMES[0], NAMES[1]))
    assert one.peers.channel == two.peers.channel
    one.send(prompt("a"), 1)
    two.peers.receive(one.peers.take())
    assert [missing > 0 for missing in two.waiting()] == [False, False, True]


def test_reported_tokens_are_known_to_both() -> None:
    one, two = Gateway(), Gateway()
    text = prompt("a long text")
    sending = one.send(text, 0)
    one.router.answered(sending, 5000, 0)
    one.peers.ended(sending, answered=True, refused=False, tokens=5000, cached=0)
    two.peers.receive(one.peers.take())
    assert two.router.known.match(text).tokens == one.router.known.match(text).tokens == 5000


def test_a_prompt_that_an_engine_did_not_compute_is_not_there() -> None:
    one, two = Gateway(), Gateway()
    sending = one.send(prompt("a"), 0)
    two.peers.receive(one.peers.take())
    assert two.router.known.match(prompt("a")).engine == 0
    one.router.failed(sending)
    one.peers.ended(sending, answered=False, refused=False, tokens=None, cached=None)
    two.peers.receive(one.peers.take())
    assert two.router.known.match(prompt("a")).engine is None and two.waiting() == [0, 0, 0]


def test_requests_of_a_gateway_without_messages_do_not_wait() -> None:
    one, two = Gateway(), Gateway()
    one.send(prompt("a"), 0)
    two.peers.receive(one.peers.take())
    two.now += SILENT_S
    two.peers.forget_silent()
    assert two.waiting()[0] > 0
    two.now += 1
    two.peers.forget_silent()
    assert two.waiting() == [0, 0, 0]
    assert two.router.known.match(prompt("a")).engine == 0


@pytest.mark.parametrize("what", ["another secret", "other engines", "changed", "cut", "empty"])
def test_messages_from_elsewhere_are_counted_and_ignored(what: str) -> None:
    two = Gateway()
    names = (*NAMES[:2], "http://d") if what == "other engines" else NAMES
    one = Gateway(names, b"t" * 32 if what == "another secret" else SECRET)
    one.send(prompt("a"), 0)
    data = one.peers.take()
    changed = {"changed": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:20], "empty": b""}
    two.peers.receive(changed.get(what, data))
    assert two.waiting() == [0, 0, 0] and two.counted("invalid") == 1


def test_repeated_and_late_messages_and_a_gateways_own_are_ignored() -> None:
    one, two = Gateway(), Gateway()
    one.send(prompt("a"), 0)
    data = one.peers.take()
    one.peers.receive(data)
    assert one.counted("received") == one.counted("invalid") == 0
    two.peers.receive(data)
    before = two.waiting()
    two.peers.receive(data)
    assert two.waiting() == before and two.counted("invalid") == 1
    one.send(prompt("b"), 0)
    two.now += LATE_S + 1
    two.peers.receive(one.peers.take())
    assert two.waiting() == before and two.counted("late") == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.binary(max_size=80)), max_size=6))
def test_nonsense_of_a_gateway_changes_nothing_and_raises_nothing(messages: list[tuple[int, int, bytes]]) -> None:
    one, two = Gateway(), Gateway()
    for kind, number, body in messages:
        one.peers.put(kind, number, body)
    two.peers.receive(one.peers.take())
    two.now += SILENT_S + 1
    two.peers.forget_silent()
    assert two.waiting() == [0, 0, 0]


def test_messages_that_redis_does_not_take_are_bounded_and_counted() -> None:
    one = Gateway()
    large = prompt_of(b"", [(bytes([n % 256]) * 5000, False) for n in range(400)])
    for _ in range(2000):
        one.send(large, 0)
    assert one.counted("dropped") > 0
    assert sum(len(one.peers.take()) for _ in range(40)) < 5 << 20


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["one", "two"]), st.integers(0, 4), st.integers(0, 2), st.booleans()), max_size=30))
def test_gateways_that_share_requests_have_the_same_beliefs(steps: list[tuple[str, int, int, bool]]) -> None:
    gateways = {"one": Gateway(), "two": Gateway()}
    turns = dict.fromkeys(range(5), 1)
    for who, conversation, engine, answered in steps:
        texts = [f"{conversation}/{turn}" for turn in range(2 * turns[conversation] - 1)]
        turns[conversation] += 1
        own, other = gateways[who], gateways["two" if who == "one" else "one"]
        sending = own.send(prompt(*texts), engine)
        if answered:
            own.router.first_token(sending, own.now)
            own.peers.first(sending)
        other.peers.receive(own.peers.take())
        assert own.waiting() == other.waiting()
        following = prompt(*texts, "reply", "next")
        beliefs = [gateway.router.known.match(following) for gateway in (own, other)]
        assert beliefs[0] == beliefs[1]._replace(conversation=beliefs[0].conversation)
