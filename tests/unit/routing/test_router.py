"""The engine that a router chooses."""

from collections import Counter
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lpc_apps.routing.known import Match
from lpc_apps.routing.prompt import Prompt, prompt_of
from lpc_apps.routing.router import FULLER, Router, Sending

NAMES = [f"http://engine-{number}:8000" for number in range(4)]
ALL = range(4)
NEW = Match(1000, 0, None, None, 0, (), None)


def prompt(*texts: str) -> Prompt:
    return prompt_of(b"", [(text.encode() * 4000, at % 2 == 1) for at, text in enumerate(texts)])


def send(router: Router, one: Prompt, now: float, *, streamed: bool = True, key: int | None = None) -> Sending:
    match = router.known.match(one)
    (engine, *_) = router.ranked(match, one.ids[0] if key is None else key, ALL, now)
    return router.sent(one, match, engine, now, streamed=streamed)


def test_the_next_turn_goes_home_while_the_wait_there_is_short() -> None:
    router = Router(NAMES)
    first = send(router, prompt("a"), 0.0)
    router.first_token(first, 0.1)
    again = send(router, prompt("a", "b", "c"), 1.0)
    assert again.engine == first.engine
    assert again.believed > 1900 and again.missing < 1100


def test_the_next_turn_leaves_an_engine_whose_prefill_waits_longer_than_the_copy_costs() -> None:
    router = Router(NAMES)
    first = send(router, prompt("a"), 0.0)
    router.first_token(first, 0.1)
    # W times a thousand tokens against what waits: prompts of 2M bytes, each about 50 s of prefill.
    router.sent(prompt_of(b"", [(b"long" * 500_000, False)]), NEW._replace(tokens=500_000), first.engine, 0.2)
    assert send(router, prompt("a", "b", "c"), 1.0).engine != first.engine


def test_a_conversation_that_its_engine_is_believed_to_have_evicted_stays_while_the_wait_there_is_short() -> None:
    """Moved, its copy would evict another one there, and near saturation all engines would compute more."""
    router = Router(NAMES)
    first = send(router, prompt("a"), 0.0)
    router.first_token(first, 0.1)
    router.engines[first.engine].cache = ()
    router.sent(prompt_of(b"", [(b"long" * 5_000, False)]), NEW._replace(tokens=5_000), first.engine, 0.2)
    again = send(router, prompt("a", "b", "c"), 1.0)
    assert again.engine == first.engine
    assert again.expected == 0 and again.missing == again.tokens


def test_new_conversations_are_spread_and_the_fullest_engine_has_a_tenth_more_than_its_share() -> None:
    router, now = Router(NAMES), 0.0
    counts: Counter[int] = Counter()
    for number in range(400):
        sending = send(router, prompt(f"conversation {number}"), now)
        counts[sending.engine] += 1
        router.first_token(sending, now)
        now += 1.0
    assert max(counts.values()) <= FULLER * 100 + 1


def test_two_routers_that_each_see_half_agree_on_nearly_all_new_conversations() -> None:
    routers = [Router(NAMES), Router(NAMES)]
    random, agree = Random(0), 0
    for number in range(1000):
        mine, other = random.sample(routers, 2)
        one = prompt(f"conversation {number}")
        foreseen = other.ranked(other.known.match(one), one.ids[0], ALL, float(number))[0]
        sending = send(mine, one, float(number))
        mine.first_token(sending, float(number))
        agree += sending.engine == foreseen
    assert agree > 800


def test_waiting_prefill_ends_with_the_first_token_or_without_a_stream_when_it_is_due() -> None:
    router = Router(NAMES)
    streamed, whole = (router.sent(prompt(name), NEW, 0, 0.0, streamed=way) for name, way in (("a", True), ("b", False)))
    engine = router.engines[0]
    assert engine.waiting_s(0.0) == 2000 / 10_000
    assert engine.waiting_s(0.3) == 1000 / 10_000
    router.first_token(streamed, 0.3)
    assert engine.waiting_s(0.3) == 0.0
    router.answered(whole)
    assert engine.missing == 0


def test_an_engine_that_evicts_what_is_believed_has_more_waiting_work_and_keeps_its_conversations() -> None:
    router = Router(NAMES)
    history = ["a"]
    home = send(router, prompt(*history), 0.0)
    router.first_token(home, 1.0)
    router.answered(home, 1000, 0)
    for turn in range(60):
        history += ["b", "c"]
        sending = send(router, prompt(*history), 2.0 + turn)
        assert sending.engine == home.engine
        router.first_token(sending, 2.5 + turn)
        router.answered(sending, 1000 * len(history), 0)
    assert router.engines[home.engine].wrong > 0.9
    assert send(router, prompt(*history, "b", "c"), 100.0).missing > 0.9 * 1000 * len(history)


def test_a_slow_engine_is_known_by_the_time_of_its_prefills() -> None:
    router, now = Router(NAMES), 0.0
    for turn in range(60):
        for engine, speed in enumerate((30_000, 30_000, 30_000, 10_000)):
            sending = router.sent(prompt(f"{turn} {engine}"), NEW._replace(tokens=30_000), engine, now)
            router.first_token(sending, now + 30_000 / speed)
            router.answered(sending, 30_000, 0)
        now += 5.0
    assert abs(router.engines[0].tokens_per_s - 30_000) < 600
    assert abs(router.engines[3].tokens_per_s - 10_000) < 200


def test_engines_whose_measured_speeds_differ_by_a_few_percent_get_equal_shares_of_new_conversations() -> None:
    router, now = Router(NAMES), 0.0
    for turn in range(60):
        for engine, speed in enumerate((30_000, 30_500, 29_500, 29_000)):
            sending = router.sent(prompt(f"{turn} {engine}"), NEW._replace(tokens=30_000), engine, now)
            router.first_token(sending, now + 30_000 / speed)
            router.answered(sending, 30_000, 0)
        now += 5.0
    counts: Counter[int] = Counter()
    for number in range(400):
        one = prompt_of(b"", [(f"conversation {number}".encode() * 8_000, False)])
        sending = send(router, one, now)
        counts[sending.engine] += 1
        router.first_token(sending, now + 1.0)
        now += 2.0
    assert min(counts.values()) > 60


def test_an_engine_without_measurements_is_taken_to_be_as_fast_as_the_others() -> None:
    router = Router(NAMES)
    for turn in range(30):
        sending = router.sent(prompt(str(turn)), NEW._replace(tokens=30_000), 0, float(turn))
        router.first_token(sending, turn + 1.0)
        router.answered(sending, 30_000, 0)
    assert router.engines[1].tokens_per_s == router.speed.tokens_per_s > 25_000


@given(st.lists(st.tuples(st.sampled_from(["send", "first", "answer", "fail", "lose"]), st.integers(0, 9), st.booleans())))
def test_no_waiting_prefill_and_no_live_conversation_is_lost_or_counted_twice(steps: list[tuple[str, int, bool]]) -> None:
    router, running = Router(NAMES), list[Sending]()
    for now, (kind, number, flag) in enumerate(steps):
        if kind == "send":
            running.append(send(router, prompt(str(number), *("b", "c") * flag), float(now), streamed=flag))
        elif kind == "lose":
            router.lost(number % 4)
            running = [sending for sending in running if sending.engine != number % 4]
        elif running:
            sending = running[number % len(running)]
            if kind == "first":
                router.first_token(sending, float(now))
                continue
            running.remove(sending)
            router.answered(sending, 100, 50) if kind == "answer" else router.failed(sending)
        for at, engine in enumerate(router.engines):
            assert engine.missing == sum(one.missing for one in running if one.engine == at and one.open)
    assert sum(engine.live for engine in router.engines) == len(router._live)


def test_the_conversations_of_an_engine_that_ends_and_returns_go_home_one_at_a_time() -> None:
    router, now = Router(NAMES), 0.0
    homes = []
    for number in range(80):
        sending = send(router, prompt(str(number)), now)
        router.first_token(sending, now)
        homes.append(sending.engine)
    up = [0, 1, 2]
    for number in (number for number, home in enumerate(homes) if home == 3 and number % 2):
        one = prompt(str(number), "b", "c")
        match = router.known.match(one)
        (engine, *_) = router.ranked(match, one.ids[0], up, now)
        assert engine != 3
        router.first_token(router.sent(one, match, engine, now, left=3), now)
    router.lost(3)
    back = []
    for number in (number for number, home in enumerate(homes) if home == 3):
        sending = send(router, prompt(str(number), "b", "c", *("d", "e") * (number % 2)), now)
        back.append(sending.engine == 3)
        router.first_token(sending, now)
    assert len(back) > 10 and sum(back) >= 0.9 * len(back)


def test_a_conversation_does_not_go_home_to_an_engine_whose_prefill_waits() -> None:
    router = Router(NAMES)
    home = send(router, prompt("a"), 0.0)
    router.first_token(home, 0.0)
    router.lost(home.engine)
    router.sent(prompt_of(b"", [(b"long" * 250_000, False)]), NEW._replace(tokens=250_000), home.engine, 0.2)
    assert send(router, prompt("a", "b", "c"), 1.0).engine != home.engine


def test_an_answer_that_is_not_streamed_says_nothing_of_the_speed() -> None:
    router = Router(NAMES)
    for turn in range(20):
        whole = router.sent(prompt(str(turn)), NEW, 0, 100.0 * turn, streamed=False)
        router.first_token(whole, 100.0 * turn + 50.0)  # nearly all of it is decoding
        router.answered(whole, 1000, 0)
    assert not router.engines[0].is_measured
    assert router.engines[0].tokens_per_s == 10_000


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_a_conversation_is_away_until_it_comes_back_to_where_it_left(engines: list[int]) -> None:
    router, history, moves = Router(NAMES), ["a"], list[str | None]()
    for number, engine in enumerate(engines):
        one = prompt(*history)
        sending = router.sent(one, router.known.match(one), engine, float(number))
        router.first_token(sending, float(number))
        moves.append(sending.move)
        history += ["b", "c"]
    stays = [before == after for before, after in pairwise(engines)]
    assert moves[0] is None and [move is None for move in moves[1:]] == stays
    counts = Counter(moves)
    assert counts["away"] - counts["back"] == (engines[-1] != engines[0])


def test_a_copy_is_what_another_engine_is_believed_to_hold() -> None:
    router = Router(NAMES)
    first = prompt("a")
    router.sent(first, router.known.match(first), 0, 0.0)
    again = router.known.match(prompt("a", "b", "c"))
    assert router.missing_everywhere(again) == router.missing(again, 0) < router.missing(again, 1) == again.tokens
    new = router.known.match(prompt("z"))
    assert router.missing_everywhere(new) == router.missing(new, 0) == new.tokens
