"""Facts of users: what they count, what is forgotten, and what a flood of names costs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.model.conversation import Message, UserTurns, from_messages
from lpc.model.returns.facts import Facts
from lpc.model.returns.memory import Arrival, Conversations
from lpc.model.returns.users import DAY_S, FORGOTTEN_S, HALF_LIFE_S, NO_USER, UserPast, Users
from predictor_service.labels.names import WINDOW, identity_of
from predictor_service.labels.tracker import TurnTracker
from predictor_service.sharing.records import plausible_user
from tests.reachable import reached

START = 1_700_000_000.0


def facts_of(*turns: tuple[str, str, float], users: Users | None = None) -> list[Facts]:
    """Return the facts of turns: user, conversation, seconds."""
    conversations, known = Conversations(), Users() if users is None else users
    found = []
    for user, conversation, at in turns:
        arrival = Arrival(conversation.encode(), START + at, Facts(1), user=user.encode())
        found.append(conversations.arrive(arrival, known)[0].arrival.facts)
    return found


def test_a_user_is_known_by_the_conversations_before() -> None:
    *_, last = facts_of(("u", "a", 0), ("u", "a", 10), ("u", "a", 50), ("u", "b", 100), ("u", "c", 160))

    assert last.user_conversations == pytest.approx(2, rel=1e-3)
    assert last.user_went_on == pytest.approx(1.5 / 3, rel=1e-3)
    assert last.user_turns == pytest.approx(2, rel=1e-3)
    assert last.user_gap == pytest.approx(20, rel=1e-3)
    assert last.user_since == 60


def test_the_usual_time_of_day_is_that_of_the_earlier_turns() -> None:
    days = [("u", f"{day}", DAY_S * day) for day in range(5)]
    for later, usual in ((0.0, 1.0), (0.25, 0.5), (0.5, 0.0), (0.75, 0.5)):
        *_, last = facts_of(*days, ("u", "last", DAY_S * (5 + later)))
        assert last.user_usual == pytest.approx(usual, abs=1e-6)

    *_, last = facts_of(*(("u", f"{part}", DAY_S * part / 8) for part in range(16)))
    assert last.user_usual == pytest.approx(0.5, abs=0.1)
    assert math.isnan(facts_of(("u", "a", 0))[0].user_usual)


def test_the_current_conversation_is_not_an_earlier_one() -> None:
    first, second = facts_of(("u", "a", 0), ("u", "a", 10))

    assert first.user_conversations == second.user_conversations == 0
    assert math.isnan(first.user_since) and second.user_since == 10


def test_without_a_user_nothing_is_known_of_one() -> None:
    (facts,) = facts_of(("", "a", 0))

    assert all(math.isnan(value) for name, value in facts._asdict().items() if name.startswith("user_"))


def test_other_users_say_nothing() -> None:
    *_, last = facts_of(("u", "a", 0), ("u", "b", 10), ("v", "c", 20))

    assert last.user_conversations == 0


def test_counts_halve_and_are_forgotten() -> None:
    for away, kept in ((HALF_LIFE_S, 0.5), (FORGOTTEN_S + 1, 0.0)):
        users = Users()
        facts_of(("u", "a", 0), users=users)
        known = users.get(b"u", START + away)

        assert known.arrive(START + away, math.nan, second=False).conversations == pytest.approx(1 + kept)


def test_a_flood_of_names_has_bounded_memory_and_drops_those_who_were_away_longest() -> None:
    users = Users(capacity=100)
    for number in range(1000):
        facts_of((f"{number}", f"{number}", number), ("often", f"o{number}", number), users=users)

    assert len(users) == 100
    assert users.get(b"often", START + 1000).conversations > 900
    assert users.get(b"1", START + 1000) == NO_USER


@given(st.lists(st.tuples(st.floats(-1e6, 1e9), st.booleans(), st.floats(0, 1e6)), max_size=30))
def test_counts_are_finite_whatever_the_clock_does(turns: list[tuple[float, bool, float]]) -> None:
    past = NO_USER
    for at, first, gap in turns:
        past = past.arrive(at, math.nan if first else gap, second=False)

    assert all(map(math.isfinite, past[1:])) and (not turns or math.isfinite(past.latest))
    assert past.gap_s != past.gap_s or 0 < past.gap_s < math.inf
    assert not turns or -1e-9 <= past.usual(turns[-1][0]) <= 1 + 1e-9


def said(*prompts: str) -> UserTurns:
    return from_messages((Message("user", prompt) for prompt in prompts), WINDOW)


def arrive(tracker: TurnTracker, text: str, at: float, user: str, client: str = "c") -> Facts:
    turns = said(text)
    return tracker.arrive(turns, identity_of(turns, text), START + at, client=client, user=user).arrival.facts


def test_a_caller_cannot_name_the_users_of_another_one() -> None:
    tracker = TurnTracker(100, 3600.0, [])
    for number in range(5):
        arrive(tracker, f"{number}", number, "alice", client="one")

    assert arrive(tracker, "x", 10, "alice", client="two").user_conversations == 0
    assert arrive(tracker, "y", 10, "alice", client="one").user_conversations == pytest.approx(5, rel=1e-3)


def test_the_sidecar_does_not_store_a_users_name() -> None:
    tracker = TurnTracker(100, 3600.0, [])
    arrive(tracker, "hello", 0, "canaryzebra")

    stored = [one for _, one in reached(tracker) if isinstance(one, bytes | str)]
    assert stored and not any("canary" in one if isinstance(one, str) else b"canary" in one for one in stored)


def test_a_repeated_turn_does_not_count_twice() -> None:
    tracker = TurnTracker(100, 3600.0, [])
    for _ in range(3):
        arrive(tracker, "the same turn", 0, "u")

    assert arrive(tracker, "another", 5, "u").user_conversations == pytest.approx(1, rel=1e-3)


def test_facts_of_another_sidecar_replace_fewer_own_ones() -> None:
    tracker = TurnTracker(100, 3600.0, [])
    turns = said("a")
    turn = tracker.arrive(turns, identity_of(turns, "a"), START, client="c", user="u")
    elsewhere = UserPast(START - 60, 4.0, 2.0, 9.0, 5 * math.log(30.0), 9.0, 0.0)

    after = tracker.user_elsewhere(turn, elsewhere)

    assert turn.arrival.facts.user_conversations == 4 and turn.arrival.facts.user_gap == pytest.approx(30)
    assert after.turns == pytest.approx(10, rel=1e-3) and after.conversations == pytest.approx(5, rel=1e-3)
    assert tracker.user_elsewhere(turn, NO_USER) == after


@pytest.mark.parametrize(
    "changes",
    [
        {"went_on": 9.0},
        {"turns": math.inf},
        {"cos_sum": 11.5},
        {"cos_sum": 8.0, "sin_sum": -8.0},
        {"sin_sum": math.nan},
        {"latest": 60.0},
    ],
)
def test_counts_that_no_sidecar_would_have_written_are_ignored(changes: dict[str, float]) -> None:
    written = UserPast(START - 60, 4.0, 2.0, 9.0, 5 * math.log(30.0), 9.0, 0.0)

    assert plausible_user(written, START)
    assert not plausible_user(written._replace(**changes), START)


def test_the_users_that_one_client_invents_push_out_no_other_clients_users() -> None:
    users = Users(capacity=100, client_bytes=4)
    past = NO_USER.arrive(START, math.nan, second=False)
    for number in range(20):
        users.put(b"calm%d" % number, past)
    for number in range(1000):
        users.put(b"loud%d" % number, past)

    assert len(users) == 100
    assert all(users.get(b"calm%d" % number, START) == past for number in range(20))
    assert users.get(b"loud999", START) == past and users.get(b"loud0", START) == NO_USER
