"""Turns are labelled by what their conversations did next."""

import math
import pickle
import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc.model.artifact import Manifest
from lpc.model.conversation import Message, UserTurns, from_messages, from_prompt, with_turn_count
from lpc.model.features import FeatureSettings
from lpc.model.returns.facts import Facts
from lpc.model.returns.memory import NO_PAST, Arrival
from predictor_service.labels.names import WINDOW, identity_of
from predictor_service.labels.tracker import CHUNK, LATE_S, TurnTracker
from predictor_service.labels.turn import Forecast, Label, Reason, Turn, TurnObserver

HORIZON = 100.0
MANIFEST = Manifest("m", "v1", "fp32", {}, FeatureSettings(), 4, "", "", {}, {}, "")


class Sidecar(TurnObserver):
    """A tracker, with what became known. The nth request's probability is n / 1000, so that its label is found again."""

    def __init__(self, capacity: int = 1000) -> None:
        self.known: dict[int, Label] = {}
        self.rows = 0
        self.without: Counter[str] = Counter()
        self.asked = 0
        self.tracker = TurnTracker(capacity, HORIZON, [self])

    def labelled(self, label: Label) -> None:
        self.rows += 1
        self.known[round(label.forecast.probability * 1000)] = label

    def unlabelled(self, reason: Reason, count: int) -> None:
        self.without[reason] += count

    def ask(self, turns: UserTurns, at: float, name: str = "", answered: bool = True, client: str = "") -> int:
        turn = self.tracker.arrive(turns, identity_of(turns, name), at, client=client)
        number, self.asked = self.asked, self.asked + 1
        if answered:
            self.tracker.answered(turn, Forecast(number / 1000, None, 3, MANIFEST))
        return number

    def outcomes(self) -> dict[int, bool]:
        """Let the horizon of all pass; what became of each request."""
        self.tracker.expire(math.inf)
        return {number: label.continues for number, label in sorted(self.known.items())}


def chat(*prompts: str) -> UserTurns:
    """A request that shows the whole conversation."""
    return from_messages((m for p in prompts for m in (Message("user", p), Message("assistant", "."))), WINDOW)


TEN = [f"prompt {n}" for n in range(10)]


def test_a_return_after_the_horizon_is_recognised_only_with_an_id() -> None:
    diary = Diary()
    tracker = TurnTracker(8, HORIZON, [diary])
    for prompts, at in ((("x" * 64,), 1.0), (("x" * 64, "b"), 2.0 + HORIZON)):
        tracker.expire(at)
        said = chat(*prompts)
        turns = [tracker.arrive(said, identity_of(said, name), at) for name in ("", "id")]
    assert diary.heard == [("returned", 1, 2.0 + HORIZON)]
    gaps = [turn.arrival.facts.last_gap for turn in turns]
    assert math.isnan(gaps[0]) and gaps[1] == 1.0 + HORIZON
    tracker.expire(2.0 + HORIZON + LATE_S)
    assert tracker._waiting == {} and not tracker._late


def test_a_repeated_turn_is_one_row_with_the_last_prediction() -> None:
    sidecar = Sidecar()
    sidecar.ask(chat("hi"), at=0)
    sidecar.ask(chat("hi", "thanks"), at=1)
    sidecar.ask(chat("hi", "thanks"), at=2)
    assert sidecar.outcomes() == {0: True, 2: False}
    assert sidecar.known[2].turn.arrival.asked_at == 1
    assert sidecar.without == {"repeated": 1}


def test_an_id_links_turns_without_common_text() -> None:
    sidecar = Sidecar()
    for n in range(3):
        sidecar.ask(from_prompt(f"whole prompt {n}"), at=n, name="conversation")
    sidecar.ask(from_prompt("whole prompt 2"), at=3, name="conversation")
    sidecar.ask(from_prompt("whole prompt 2"), at=4, name="another")
    assert sidecar.outcomes() == {0: True, 1: True, 3: False, 4: False}
    assert (
        sidecar.known[1].turn.arrival.conversation
        == sidecar.known[0].turn.arrival.conversation
        != sidecar.known[4].turn.arrival.conversation
    )


def test_plain_prompts_and_cut_histories_without_an_id_get_no_label() -> None:
    sidecar = Sidecar()
    sidecar.ask(from_prompt("hello"), at=0)
    sidecar.ask(with_turn_count(chat("hello", "again"), 7, 100), at=0)
    assert sidecar.outcomes() == {}
    assert sidecar.without == {"unidentified": 2} and len(sidecar.tracker) == 0


def test_an_unanswered_turn_is_not_labelled_but_its_next_turn_is_recognised() -> None:
    sidecar = Sidecar()
    sidecar.ask(chat("a"), at=0)
    sidecar.ask(chat("a", "b"), at=1, answered=False)
    sidecar.ask(chat("a", "b", "c"), at=2)
    assert sidecar.outcomes() == {0: True, 2: False}
    assert sidecar.known[0].turn.arrival.conversation == sidecar.known[2].turn.arrival.conversation
    assert sidecar.without == {}


def test_a_full_memory_labels_old_turns_correctly_and_new_ones_not() -> None:
    sidecar = Sidecar(capacity=2)
    sidecar.ask(chat("a"), at=0)
    sidecar.ask(chat("b"), at=1)
    sidecar.ask(chat("c"), at=2)
    sidecar.ask(chat("a", "b"), at=3)
    assert len(sidecar.tracker) == 2
    assert sidecar.outcomes() == {0: True, 1: False}
    assert sidecar.without == {"memory": 2}
    sidecar.ask(chat("d"), at=4)
    assert sidecar.outcomes()[4] is False


@pytest.mark.parametrize("late", [False, True])
def test_a_flood_of_turns_without_label_pushes_out_no_other_clients_turns(late: bool) -> None:
    sidecar = Sidecar(capacity=6)
    for n in range(6):
        sidecar.ask(chat(f"first {n}"), at=0, client="loud")

    def arrive(client: str, n: int, at: float) -> Turn:
        turns = chat(f"{client} {n}")
        return sidecar.tracker.arrive(turns, identity_of(turns, f"{client} {n}"), at, client=client)

    quiet = [arrive("quiet", n, 1.0) for n in range(2)]
    loud = [arrive("loud", n, 2.0) for n in range(50)]
    if late:
        sidecar.tracker.expire(3 * HORIZON)
    for n, turn in enumerate(quiet):
        again = sidecar.tracker.arrive(
            chat(f"quiet {n}", "next"), identity_of(chat(f"quiet {n}", "next"), f"quiet {n}"), 400.0, client="quiet"
        )
        assert again.arrival.past.history.number == 1 and turn.next_at == 400.0
    assert sum(turn in sidecar.tracker._late or turn in sidecar.tracker._unlabelled_turns for turn in loud) <= 4


def flooded(sidecar: Sidecar, rates: dict[str, float], horizons: int) -> Counter[str]:
    """Let each client send so many turns per second, each of a conversation of its own; return the labels by client."""
    sent = Counter[str]()
    for second in range(int(horizons * HORIZON)):
        for client, rate in rates.items():
            while sent[client] < rate * (second + 1):
                sent[client] += 1
                sidecar.ask(chat(f"{client} {sent[client]}"), at=second, client=client)
        sidecar.tracker.expire(second)
    return Counter(label.turn.sent.client for label in sidecar.known.values())


def test_a_client_that_floods_owns_at_most_three_quarters_of_the_labels() -> None:
    sidecar = Sidecar(capacity=2000)
    found = flooded(sidecar, {"quiet": 2.0, "flood": 30.0}, 5)
    assert found["quiet"] == 2 * (5 * HORIZON - HORIZON)
    assert found["flood"] / found.total() <= 0.76
    assert sidecar.without["share"] > 0 and sidecar.without["memory"] == 0


@pytest.mark.parametrize("floods", [1, 3])
def test_clients_that_have_filled_the_memory_make_room_for_another(floods: int) -> None:
    sidecar = Sidecar(capacity=600)
    rates = {f"flood {n}": 20.0 for n in range(floods)}
    flooded(sidecar, rates, 2)
    assert len(sidecar.tracker) > 500
    sidecar.known.clear()
    for second in range(int(2 * HORIZON), int(5 * HORIZON)):
        for client in rates:
            for n in range(20):
                sidecar.ask(chat(f"{client} {second} {n}"), at=second, client=client)
        sidecar.ask(chat(f"quiet {second}"), at=second, client="quiet")
        sidecar.tracker.expire(second)
        assert len(sidecar.tracker) <= 600
    found = Counter(label.turn.sent.client for label in sidecar.known.values())
    assert found["quiet"] >= HORIZON  # of 200 due, once the first turns of the others have expired


def test_a_client_alone_has_the_whole_memory_also_after_others_have_gone() -> None:
    sidecar = Sidecar(capacity=200)
    flooded(sidecar, {"one": 1.0, "other": 0.1}, 3)
    for second in range(1000, 1400):
        sidecar.ask(chat(f"alone {second}"), at=second, client="one")
        sidecar.ask(chat(f"alone too {second}"), at=second, client="one")
        sidecar.tracker.expire(second)
    assert sidecar.tracker._held == {"one": len(sidecar.tracker)}
    assert len(sidecar.tracker) >= 198  # two have just expired


def test_the_memory_contains_neither_text_nor_ids() -> None:
    sidecar = Sidecar()
    sidecar.ask(chat("canaryzebra", "canaryzebra"), at=0)
    sidecar.ask(from_prompt("canaryzebra"), at=0, name="canaryzebra")
    held: dict[str, Any] = {k: v for k, v in vars(sidecar.tracker).items() if k in ("_turns", "_waiting")}
    assert len(sidecar.tracker) == 2 and len(held) == 2
    assert b"canaryzebra" not in pickle.dumps(held)


@given(st.lists(st.integers(0, 4), max_size=60), st.lists(st.booleans(), min_size=60, max_size=60))
def test_interleaved_conversations_with_different_texts_are_labelled_correctly(order: list[int], again: list[bool]) -> None:
    """``order``: whose turn comes next. ``again``: whether it is asked twice."""
    sidecar = Sidecar()
    prompts: dict[int, list[str]] = {}
    latest: dict[int, int] = {}
    truth: dict[int, bool] = {}
    owner: dict[int, int] = {}
    for at, (speaker, twice) in enumerate(zip(order, again, strict=False)):
        if speaker in latest:
            truth[latest[speaker]] = True
        said = prompts.setdefault(speaker, [])
        said.append(f"user {speaker}, turn {len(said)}: " + "x" * 64)
        for _ in range(1 + twice):
            latest[speaker] = sidecar.ask(chat(*said), at=at / 1000)
        truth[latest[speaker]] = False
        owner[latest[speaker]] = speaker
    assert sidecar.outcomes() == truth
    assert sidecar.rows == len(truth) == len(order)
    pairs = {(owner[number], label.turn.arrival.conversation) for number, label in sidecar.known.items()}
    assert len(pairs) == len({speaker for speaker, _ in pairs}) == len({name for _, name in pairs})


def test_threads_lose_no_turn() -> None:
    sidecar = Sidecar(100_000)
    tracker = sidecar.tracker

    def converse(user: int) -> None:
        said: list[str] = []
        for n in range(200):
            said.append(f"user {user}, turn {n}: " + "x" * 64)
            turns = replace(chat(*said[-WINDOW:]), turn_count=n + 1)
            turn = tracker.arrive(turns, identity_of(turns, ""), 0.0)
            tracker.answered(turn, Forecast((200 * user + n) / 1000, None, 3, MANIFEST))

    threads = [threading.Thread(target=converse, args=(user,)) for user in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tracker) == 1600 > CHUNK
    tracker.expire(HORIZON)
    assert sum(label.continues for label in sidecar.known.values()) == 8 * 199 and len(sidecar.known) == sidecar.rows == 1600


class Diary(TurnObserver):
    """Notes what it hears, and whether the tracker can be used meanwhile."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, object]] = []

    def returned(self, turn: Turn) -> None:
        self.heard.append(("returned", turn.sent.turn_count, turn.next_at))

    def labelled(self, label: Label) -> None:
        self.heard.append(("labelled", label.turn.sent.turn_count, label.continues))


def test_a_conversation_continued_from_elsewhere_keeps_its_prediction_and_its_label() -> None:
    sidecar = Sidecar()
    turns = chat("x" * 64, "b")
    turn = sidecar.tracker.arrive(turns, identity_of(turns, ""), 50.0, Facts(2, 300.0))
    sidecar.tracker.answered(turn, Forecast(0.25, None, 3, MANIFEST))
    arrived = turn.arrival
    assert math.isnan(arrived.facts.last_gap)
    past = Arrival(b"", 20.0, Facts(1, 100.0)).after(NO_PAST).past
    sidecar.tracker.continue_from(turn, b"elsewhere", past)
    facts = turn.arrival.facts
    assert (facts.last_gap, facts.growth_tokens, turn.arrival.conversation) == (30.0, 200.0, b"elsewhere")
    assert math.isnan(arrived.facts.last_gap), "an arrival that another thread has read changes"
    sidecar.outcomes()
    assert sidecar.known[250].turn is turn


def test_names_of_a_turn_depend_on_the_key_and_meet_those_of_the_next_turn() -> None:
    first, second = (identity_of(chat(*TEN[:n]), "") for n in (3, 4))
    assert first is not None and second is not None
    for key in (b"one", b"two"):
        assert second.under(key).before == first.under(key).own
    assert first.under(b"one").own != first.under(b"two").own
    assert not {*first.under(b"one")[:3]} & {*first[:3]}, "a digest without a key is stored"


def test_observers_get_a_turns_events_in_order() -> None:
    diaries = [Diary(), Diary()]
    tracker = TurnTracker(8, HORIZON, diaries)
    said = "x" * 64
    for turns, at, probability in ((chat(said), 1.0, 0.25), (chat(said), 2.0, 0.75), (chat(said, "b"), 5.0, 0.5)):
        turn = tracker.arrive(turns, identity_of(turns, ""), at)
        tracker.answered(turn, Forecast(probability, None, 3, MANIFEST))
    tracker.expire(5.0 + HORIZON)
    assert diaries[0].heard == [
        ("returned", 1, 5.0),
        ("labelled", 1, True),
        ("labelled", 2, False),
    ]
    assert diaries[1].heard == diaries[0].heard


def test_an_observer_that_raises_misses_only_one_label() -> None:
    class Failing(Sidecar):
        def labelled(self, label: Label) -> None:
            if not self.known:
                self.known[-1] = label
                raise KeyError("the first one")
            super().labelled(label)

    sidecar = Failing()
    for n in range(5):
        sidecar.ask(chat(*TEN[: n + 1]), at=float(n))
    with pytest.raises(KeyError):
        sidecar.tracker.expire(math.inf)
    assert sidecar.rows == 4
    assert len(sidecar.tracker) == 0
