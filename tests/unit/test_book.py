"""How the book spreads requests over the connections of a client."""

from collections import Counter
from collections.abc import Iterator

import pytest

from eviction_client.book import Book
from eviction_client.lane import Lane, Request
from eviction_client.messages import Prediction, Question


@pytest.fixture
def book() -> Iterator[Book]:
    """A book whose lock this thread holds."""
    found = Book(1000)
    with found.changed:
        yield found


ANSWER = Prediction(0.5, "v", None, None, 1)


def ask(book: Book, key: object, now: float = 0.0) -> Request:
    request = Request(key, Question((1,)), now, now + 10.0)
    book.enter(request)
    return request


def send_all(book: Book, lane: Lane, now: float = 0.0) -> list[int]:
    numbers = []
    while (following := book.next_to_send(lane, now)) is not None:
        numbers.append(following[0])
    return numbers


def test_requests_alternate_between_idle_sidecars(book: Book) -> None:
    lanes = [book.open_lane(0.0) for _ in range(2)]
    seen = Counter[int]()
    for n in range(10):
        request = ask(book, n)
        place = next(i for i, lane in enumerate(lanes) if lane is request.lane)
        seen[place] += 1
        (number,) = send_all(book, lanes[place])
        book.receive(lanes[place], number, ANSWER, "failed", 0.0)
    assert seen == {0: 5, 1: 5}


def test_the_sidecar_with_the_least_to_do_is_asked(book: Book) -> None:
    slow, fast = book.open_lane(0.0), book.open_lane(0.0)
    for n in range(20):
        ask(book, n)
        send_all(book, slow)
        for number in send_all(book, fast):
            book.receive(fast, number, ANSWER, "failed", 0.0)
    assert len(slow.in_flight) == 1 and book.counters.answered == 19


def test_what_one_sidecar_refuses_another_is_asked_once(book: Book) -> None:
    full, other = book.open_lane(0.0), book.open_lane(0.0)
    request = ask(book, "r")
    assert request.lane is full
    (number,) = send_all(book, full)
    book.receive(full, number, None, "refused", 0.0)
    assert request.lane is other and send_all(book, other) == [number]
    book.receive(other, number, None, "refused", 0.1)
    assert book.counters.refused == 1 and book.waiting == 0


def test_a_sidecar_that_refuses_at_once_does_not_draw_all_requests(book: Book) -> None:
    full, busy = book.open_lane(0.0), book.open_lane(0.0)
    asked = Counter[str]()
    for n in range(100):
        now = n * 0.01
        ask(book, n, now)
        for number in send_all(book, full, now):
            asked["full"] += 1
            book.receive(full, number, None, "refused", now)
        asked["busy"] += len(send_all(book, busy, now))
        if len(busy.in_flight) > 3:
            book.receive(busy, min(busy.in_flight), ANSWER, "failed", now)
    assert asked["busy"] == 100  # none is lost,
    assert asked["full"] < 30  # and few are asked twice


def test_what_was_on_a_broken_stream_goes_to_the_other_sidecar(book: Book) -> None:
    one, two = book.open_lane(0.0), book.open_lane(0.0)
    requests = [ask(book, n) for n in range(4)]
    assert len(send_all(book, one)) == 2  # and two are not sent yet by the other
    book.close_lane(one, 0.0, ended=False)
    assert [request.lane for request in requests] == [two] * 4
    assert len(send_all(book, two)) == 4
    book.close_lane(two, 0.0, ended=False)
    assert book.counters.failed == 2 and book.waiting == 2  # those that were sent twice


def test_a_stream_that_its_sidecar_ends_costs_no_request_a_try(book: Book) -> None:
    request = ask(book, "r")
    for _ in range(5):
        lane = book.open_lane(0.0)
        assert send_all(book, lane) == [request.number]
        book.close_lane(lane, 0.0, ended=True)
    assert book.counters.failed == 0 and book.waiting == 1


def test_a_retired_lane_keeps_what_it_has_sent_and_gives_back_the_rest(book: Book) -> None:
    old = book.open_lane(0.0)
    sent = ask(book, "sent")
    send_all(book, old)
    unsent = ask(book, "unsent")
    new = book.open_lane(0.0)
    book.retire(old, 0.0)
    assert sent.lane is old and unsent.lane is new
    book.receive(old, sent.number, ANSWER, "failed", 0.0)
    assert book.take("sent") is ANSWER
    assert ask(book, "later").lane is new


def test_requests_wait_for_the_first_connection_and_go_in_order(book: Book) -> None:
    requests = [ask(book, n) for n in range(5)]
    assert not book.connected and [request.lane for request in requests] == [None] * 5
    assert send_all(book, book.open_lane(0.0)) == [1, 2, 3, 4, 5]


def test_a_request_that_is_dropped_is_cancelled_where_it_is(book: Book) -> None:
    lanes = [book.open_lane(0.0), book.open_lane(0.0)]
    request = ask(book, "r")
    (number,) = send_all(book, lanes[0])
    book.drop("r", "forgotten", 0.0)
    assert request.lane is None and book.counters.forgotten == 1
    assert [list(lane.cancels) for lane in lanes] == [[number], []]
