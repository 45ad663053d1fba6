"""The ends of prefills that a router does not see, by the engine's own count of first tokens."""

from hypothesis import given
from hypothesis import strategies as st

from lpc_apps.routing.counted import APART_S, LEAST, FirstTokens
from lpc_apps.routing.prompt import prompt_of
from lpc_apps.routing.router import Router, Sending


class Engine:
    """An engine that counts first tokens, and what a router knows of it."""

    def __init__(self) -> None:
        self.router = Router(["engine"])
        self.work = self.router.engines[0]
        self.counted = FirstTokens(self.work)
        self.count, self.now, self.asked = 0, 0.0, 0

    def get(self, *, streamed: bool = False) -> Sending:
        self.asked += 1
        prompt = prompt_of(b"", [(b"%d " % self.asked * 4000, False)])
        sending = self.router.sent(prompt, self.router.known.match(prompt), 0, self.now, streamed=streamed, held=True)
        self.work.handed(sending, sending.missing, 0, self.now)
        self.counted.handed(sending)
        return sending

    def first(self, sending: Sending) -> None:
        """Compute a prompt. The router sees it if the answer is streamed."""
        self.count += 1
        if sending.streamed:
            self.see(sending)

    def see(self, sending: Sending) -> None:
        self.router.first_token(sending, self.now)
        self.counted.first(sending)

    def answer(self, sending: Sending) -> None:
        if not sending.streamed:
            self.see(sending)
        self.counted.ended(sending)
        self.router.answered(sending)

    def read(self) -> bool:
        return self.counted.read(self.count, self.now)


def read_once() -> Engine:
    """Return an engine whose count has been read."""
    engine = Engine()
    engine.count = 1234  # of requests before
    engine.read()
    return engine


def test_each_counted_first_token_ends_the_oldest_prefill_without_a_stream() -> None:
    engine = read_once()
    one, two, three = (engine.get() for _ in range(3))
    engine.first(one)
    assert engine.read()
    assert [one.open, two.open, three.open] == [False, True, True]
    engine.first(two)
    engine.first(three)
    assert engine.read()
    assert not two.open and not three.open and not engine.read()


def test_first_tokens_of_streams_are_not_taken_for_those_of_other_answers() -> None:
    engine = read_once()
    stream, whole = engine.get(streamed=True), engine.get()
    engine.first(stream)
    assert not engine.read() and whole.open
    engine.first(whole)
    assert engine.read() and not whole.open


def test_an_answer_before_its_first_token_was_counted_counts_once() -> None:
    engine = read_once()
    one, two = engine.get(), engine.get()
    engine.first(one)
    engine.answer(one)
    assert not engine.read() and two.open
    engine.first(two)
    assert engine.read()
    engine.answer(two)
    three = engine.get()
    assert not engine.read() and three.open


def test_whether_a_request_had_its_first_token_before_the_first_count_shows_afterwards() -> None:
    engine = Engine()
    early, later = engine.get(), engine.get()
    engine.first(early)
    assert not engine.work.counted
    engine.read()
    assert engine.work.counted and early.open and later.open
    engine.answer(early)
    assert not engine.read() and not engine.read() and later.open
    engine.first(later)
    assert engine.read() and not later.open


def test_a_new_process_counts_from_its_start() -> None:
    engine = read_once()
    engine.first(engine.get())
    engine.read()
    engine.count = 0
    assert not engine.read()
    one = engine.get()
    engine.first(one)
    assert engine.read() and not one.open


def test_while_an_engine_counts_no_end_is_estimated_and_else_it_is() -> None:
    engine = read_once()
    engine.get()
    assert not engine.work.due
    engine.counted.unknown(engine.now)
    engine.get()
    assert len(engine.work.due) == 1


def test_the_count_is_not_used_while_many_first_tokens_are_of_others() -> None:
    engine = read_once()
    for _ in range(LEAST):
        one = engine.get()
        engine.count += 1  # somebody else's
        engine.first(one)
        engine.read()
        engine.answer(one)
        engine.read()
    assert not engine.work.counted
    engine.get()
    assert not engine.counted.asks(engine.now)
    assert engine.counted.asks(engine.now + APART_S)


def test_a_speed_is_learned_from_long_prefills_alone() -> None:
    engine = read_once()
    for seconds in (0.4, 2.0):
        one = engine.get()
        engine.now += seconds
        engine.first(one)
        engine.read()
        assert one.took == (seconds if seconds > 1 else None)


kinds = st.sampled_from(["get", "stream", "first", "answer", "read", "leave"])


@given(st.lists(st.tuples(kinds, st.integers(0, 9)), max_size=120))
def test_no_prefill_ends_before_its_first_token_without_others_and_no_answer_leaves_anything(
    steps: list[tuple[str, int]],
) -> None:
    """Requests that leave before their first token included."""
    engine = read_once()
    waiting, running = list[Sending](), list[Sending]()
    for kind, number in steps:
        engine.now += 0.1
        if kind in ("get", "stream"):
            waiting.append(engine.get(streamed=kind == "stream"))
        elif kind == "first" and waiting:
            running.append(waiting.pop(0))
            engine.first(running[-1])
        elif kind == "answer" and running:
            engine.answer(running.pop(number % len(running)))
        elif kind == "leave" and waiting:
            gone = waiting.pop(number % len(waiting))
            engine.counted.ended(gone)
            engine.router.failed(gone)
        else:
            engine.read()
        assert all(one.open for one in waiting)
    engine.read()
    assert not any(one.open for one in running)
    for one in waiting:
        engine.first(one)
    for one in (*waiting, *running):
        engine.answer(one)
    assert not engine.counted.waits
