"""What a router holds for an engine, and in which order it hands it on."""

from hypothesis import given
from hypothesis import strategies as st

from lpc_apps.routing.held import BelievedCache, Held
from lpc_apps.routing.prompt import Prompt, prompt_of
from lpc_apps.routing.router import Router, Sending

CAPACITY = 40_000


def prompt(name: str, turns: int) -> Prompt:
    texts = [(f"{name} {turn} ".encode() * 400, turn % 2 == 1) for turn in range(2 * turns + 1)]
    return prompt_of(b"", texts, name.encode())


class Loop:
    """One engine behind a router that holds; its prefill takes a second for each 10,000 tokens."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.router = Router(["engine"])
        self.held = Held(self.router.engines[0], capacity)
        self.order: list[Sending] = []
        self.now = 0.0

    def arrive(self, name: str, turns: int) -> Sending:
        one = prompt(name, turns)
        sending = self.router.sent(one, self.router.known.match(one), 0, self.now, held=True)
        self.held.add(sending)
        return sending

    def hand_on(self) -> list[Sending]:
        handed = []
        while (sending := self.held.hand_on(self.now)) is not None:
            handed.append(sending)
        self.order += handed
        return handed

    def serve(self) -> None:
        """Compute all that is held."""
        while handed := self.hand_on():
            for sending in handed:
                self.now += sending.missing / 10_000
                self.router.first_token(sending, self.now)
                self.held.answered(sending, sending.tokens - sending.missing)
                self.router.answered(sending, sending.tokens, sending.tokens - sending.missing)


def test_a_request_is_handed_on_at_once_when_nothing_is_in_prefill() -> None:
    loop = Loop()
    sending = loop.arrive("a", 1)
    assert loop.hand_on() == [sending]


def test_one_long_prompt_in_prefill_holds_the_next_until_its_first_token() -> None:
    loop = Loop()
    first, second = loop.arrive("a", 4), loop.arrive("b", 4)
    assert loop.hand_on() == [first]
    assert loop.hand_on() == []
    loop.router.first_token(first, 1.0)
    assert loop.hand_on() == [second]


def test_each_data_parallel_rank_gets_a_prompt() -> None:
    loop = Loop()
    loop.held.resize(CAPACITY, 3)
    sendings = [loop.arrive(name, 4) for name in "abcde"]
    assert loop.hand_on() == sendings[:3]
    loop.router.first_token(sendings[1], 1.0)
    assert loop.hand_on() == sendings[3:4]


def test_short_prompts_are_handed_on_together() -> None:
    loop = Loop()
    some = [loop.router.sent(one, loop.router.known.match(one), 0, 0.0, held=True) for one in map(short, range(5))]
    for sending in some:
        loop.held.add(sending)
    assert loop.hand_on() == some


def short(number: int) -> Prompt:
    return prompt_of(b"", [(b"%d" % number * 100, False)])


def test_beyond_the_cache_who_is_still_cached_goes_first_and_nobody_is_overtaken_beyond_the_bound() -> None:
    loop = Loop()
    names = [chr(ord("a") + number) for number in range(12)]
    for turns in range(1, 7):
        for name in names:
            loop.arrive(name, turns)
        loop.serve()
    warm = sum(sending.missing < sending.tokens / 2 for sending in loop.order[-36:])
    assert warm >= 9  # first come, first served, none is
    assert len(loop.order) == 72


def test_a_request_whose_client_has_gone_is_not_handed_on() -> None:
    loop = Loop()
    first, second, third = (loop.arrive(name, 4) for name in "abc")
    assert loop.hand_on() == [first]
    loop.held.drop(second)
    loop.router.failed(second, refused=True)
    loop.router.first_token(first, 1.0)
    assert loop.hand_on() == [third]
    assert list(loop.held) == []


def test_without_a_stream_the_next_is_handed_on_when_the_prefill_should_have_ended() -> None:
    loop = Loop()
    one, two = prompt("a", 4), prompt("b", 4)
    for each in (one, two):
        loop.held.add(loop.router.sent(each, loop.router.known.match(each), 0, 0.0, streamed=False, held=True))
    (first,) = loop.hand_on()
    loop.now = first.missing / 10_000 - 0.01
    assert loop.hand_on() == []
    loop.now += 0.02
    assert len(loop.hand_on()) == 1


def test_the_believed_share_follows_what_answers_report() -> None:
    smaller, larger = BelievedCache(1000), BelievedCache(1000)
    for _ in range(200):
        smaller.learn(held=True, cached=False)
        larger.learn(held=False, cached=True)
        larger.learn(held=True, cached=True)
    assert (smaller.share, larger.share) == (0.3, 1.5)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 700)), max_size=80))
def test_a_cache_holds_no_more_than_its_share_but_for_one_conversation(uses: list[tuple[int, int]]) -> None:
    cache, latest = BelievedCache(1000), dict[int, int]()
    for conversation, tokens in uses:
        cache.use(conversation, tokens)
        latest[conversation] = tokens
        held = [number for number in latest if number in cache]
        assert conversation in held
        assert sum(latest[number] for number in held) <= 900 or held == [conversation]


@given(st.lists(st.tuples(st.sampled_from(["arrive", "hand", "first", "drop"]), st.integers(0, 5)), max_size=60))
def test_each_request_is_handed_on_once_or_dropped(steps: list[tuple[str, int]]) -> None:
    loop, arrived, dropped = Loop(), list[Sending](), list[Sending]()
    for kind, number in steps:
        loop.now += 0.1
        if kind == "arrive":
            arrived.append(loop.arrive(f"c{number}", number + 1))
        elif kind == "hand":
            loop.hand_on()
        elif kind == "first" and loop.order:
            loop.router.first_token(loop.order[number % len(loop.order)], loop.now)
        elif kind == "drop" and len(loop.held):
            sending = list(loop.held)[number % len(loop.held)]
            loop.held.drop(sending)
            loop.router.failed(sending)
            dropped.append(sending)
    for sending in loop.order:
        loop.router.first_token(sending, loop.now)
    loop.serve()
    assert len(loop.order) == len(set(loop.order))
    assert {*loop.order, *dropped} == set(arrived) and not {*loop.order} & {*dropped}


def test_an_engine_that_counts_gets_one_request_by_an_estimate_and_the_next_one_by_its_count() -> None:
    loop = Loop()
    loop.held.first_tokens.read(0, 0.0)
    for name in "abc":
        one = prompt(name, 12)
        loop.held.add(loop.router.sent(one, loop.router.known.match(one), 0, 0.0, streamed=False, held=True))
    (first,) = loop.hand_on()
    at = loop.held.next_at(loop.now)
    assert at is not None and 0 < at < first.missing / 10_000
    loop.now = at
    assert len(loop.hand_on()) == 1
    for loop.now in (first.missing / 10_000, 2 * first.missing / 10_000):
        assert not loop.hand_on()
    assert first.open and loop.held.first_tokens.read(1, loop.now) and not first.open
    assert not loop.hand_on()  # the second one has just begun
    at = loop.held.next_at(loop.now)
    assert at is not None
    loop.now = at
    assert len(loop.hand_on()) == 1
