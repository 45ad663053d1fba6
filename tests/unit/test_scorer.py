"""From a request's end to its keys: predictions, hints, late answers, and what cannot be a key."""

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Sequence

import pytest

from eviction_client.background import AtOnce, Background
from eviction_client.book import PredictorCounters
from eviction_client.credit import CreditGrid
from eviction_client.guard import Guard
from eviction_client.hints import NOTHING, Asked, Hints
from eviction_client.messages import Prediction
from eviction_client.offer import TokenizerState
from eviction_client.score import Keys
from eviction_client.scorer import Scorer
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockHash, MemoryStore

NOW = 1.8e9
GRID = CreditGrid([1.0, 10_000.0])


def prediction(*credit: float) -> Prediction:
    return Prediction(0.9, "v", None, None, 1, GRID.table(credit) if credit else None)


class Answers:
    """A predictor that has the answers that it is given."""

    def __init__(self) -> None:
        self.ready: dict[Hashable, Prediction] = {}
        self.late: list[tuple[Hashable, Prediction | None]] = []
        self.forgotten: list[Hashable] = []
        self.healthy = True
        self.tokenizer_state: TokenizerState = "unknown"
        self.counters = PredictorCounters()

    def ask(self, request_id: Hashable, *, token_ids: Sequence[int], category: str = "", conversation_id: str = "") -> None:
        pass

    def take(self, request_id: Hashable) -> Prediction | None:
        return self.ready.pop(request_id, None)

    def forget(self, request_id: Hashable) -> None:
        self.forgotten.append(request_id)

    def take_or_leave(self, request_id: Hashable) -> tuple[Prediction | None, bool]:
        answer = self.take(request_id)
        return answer, answer is None

    def late_answers(self) -> list[tuple[Hashable, Prediction | None]]:
        late, self.late = self.late, []
        return late

    def close(self) -> None:
        pass


class Bench:
    """A scorer, its predictor, and its time."""

    def __init__(self, *, guard: bool = False, store: MemoryStore | None = None, hints: bool = False) -> None:
        self.now = NOW
        self.asked: list[Asked] = []
        self.answers = Answers()
        background: Callable[[Callable[[], bool]], Background] = AtOnce
        self.scorer = Scorer(
            ClientSettings(guard=guard, hints=hints),
            capacity=100,
            predictor=self.answers,
            store=store,
            clock=lambda: self.now,
            background=background,
        )

    def finish(self, name: str, answer: Prediction | None = None, *, completed: bool = True, **more: object) -> Keys:
        if answer is not None:
            self.answers.ready[name] = answer
        finished = self.scorer.finished(name, completed=completed, blocks=blocks(name), prompt_blocks=3, **more)  # type: ignore[arg-type]
        self.asked.append(finished.asked)
        return finished.keys


def blocks(name: str) -> list[BlockHash]:
    return [BlockHash(hashlib.sha256(f"{name}/{n}".encode()).digest()) for n in range(4)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    assert made.scorer.failures == 0
    made.scorer.close()


def test_a_predictions_credit_is_looked_up_at_the_lifetime_of_the_cache(bench: Bench) -> None:
    bench.scorer.lifetime.seconds = 100.0
    assert bench.finish("r", prediction(-10.0, 30.0)) == Keys(NOW, NOW + 10.0)
    assert list(bench.scorer.credits) == [10.0]


@pytest.mark.parametrize(
    ("answer", "completed", "source"),
    [(None, True, "unanswered"), (prediction(50.0, 50.0), False, "aborted"), (prediction(), True, "prediction")],
    ids=["no answer", "aborted", "older sidecar"],
)
def test_what_has_no_credit_is_exactly_lru(bench: Bench, answer: Prediction | None, completed: bool, source: str) -> None:
    assert bench.finish("r", answer, completed=completed) == Keys(NOW, NOW)
    assert bench.scorer.scored[source] == 1


def test_hints_are_ignored_and_counted_unless_the_operator_enables_them(bench: Bench) -> None:
    bench.finish("r", hints=Hints(retain_s=200))
    bench.finish("s", hints=Hints(done=True))
    assert bench.asked == [NOTHING, NOTHING]
    assert bench.scorer.hinted == {"retain": 0, "done": 0, "off": 2}


@pytest.mark.parametrize(("wanted", "allowed"), [(200.0, 200.0), (1e9, 3600.0)])
def test_a_hint_asks_for_no_longer_than_the_operator_allows(wanted: float, allowed: float) -> None:
    bench = Bench(hints=True)
    assert bench.finish("r", prediction(50.0, 50.0), hints=Hints(retain_s=wanted)) == Keys(NOW, NOW + 50.0)
    assert bench.asked == [Asked(allowed)]


def test_a_request_that_is_done_keeps_the_keys_of_what_it_shares(bench: Bench) -> None:
    bench = Bench(hints=True)
    assert bench.finish("r", prediction(50.0, 50.0), hints=Hints(done=True, retain_s=600)) == Keys(NOW, NOW + 50.0)
    assert bench.asked == [Asked(own=frozenset(blocks("r")))]
    assert bench.scorer.scored["done"] == 1 and not bench.scorer.awaits("r")


def test_the_store_does_not_learn_what_hints_ask_for_but_that_own_blocks_are_done() -> None:
    store = MemoryStore()
    bench = Bench(hints=True, store=store)
    bench.finish("r", hints=Hints(retain_s=600))
    assert store.scores(blocks("r")) == [NOW] * 4
    bench.finish("r", hints=Hints(done=True))
    assert store.scores(blocks("r")) == [NOW] * 4, "another request has used them"
    bench.finish("s", hints=Hints(done=True))
    assert store.scores(blocks("s")) == [Keys.done(NOW).key] * 4


def test_a_late_answer_gives_the_keys_that_it_would_have_given_in_time(bench: Bench) -> None:
    assert bench.finish("r") == Keys(NOW, NOW)
    assert bench.scorer.awaits("r")
    bench.now += 5
    bench.answers.late = [("r", prediction(50.0, 50.0)), ("unknown", prediction(1.0, 1.0))]
    assert bench.scorer.late() == [("r", Keys(NOW, NOW + 50))]
    assert not bench.scorer.awaits("r") and bench.scorer.late() == []
    assert bench.scorer.scored["unanswered"] == bench.scorer.scored["late"] == 1


def test_an_answer_that_never_comes_is_waited_for_no_longer(bench: Bench) -> None:
    bench.finish("r")
    bench.finish("aborted", completed=False)
    assert bench.answers.forgotten == ["aborted"]
    bench.answers.late = [("r", None)]
    assert bench.scorer.late() == [("r", None)]
    assert not bench.scorer.awaits("r") and bench.scorer.scored["late"] == 0


def test_the_store_learns_late_keys_unless_a_later_turn_has_ended() -> None:
    store = MemoryStore()
    bench = Bench(store=store)
    for name in ("a", "b"):
        bench.finish(name, session=name)
    first = next(iter(bench.scorer._learner._name_of))
    bench.now += 1
    bench.finish("a", session="a")
    bench.answers.late = [("b", prediction(50.0, 50.0))]
    bench.scorer.late()
    assert store.scores(blocks("b")) == [NOW + 50.0] * 4
    bench.scorer._learner._lay(first, GRID.table([9.0, 9.0]), NOW + 9.0)
    assert store.scores(blocks("a")) == [NOW + 1.0] * 4


def test_nothing_is_kept_of_requests_whose_answer_never_comes() -> None:
    """Their chains are as long as their prompts: with the sidecar away those of all requests would be kept."""
    bench = Bench(store=MemoryStore())
    for number in range(50):
        bench.finish(f"r{number}")
        bench.answers.late = [(f"r{number}", None)]
        bench.scorer.late()
    learner = bench.scorer._learner
    assert (len(learner._unanswered), len(learner._name_of)) == (0, 0)
    for _ in range(50):  # a conversation whose every turn is waited for
        bench.finish("again", session="again")
    assert (len(learner._unanswered), len(learner._name_of)) == (1, 1)


def test_trust_begins_with_lru_and_is_full_without_a_guard() -> None:
    assert Bench(guard=False).scorer.trusting
    assert not Bench(guard=True).scorer.trusting


@pytest.mark.parametrize("key", [math.nan, 1.8e7, NOW + 1e6, -math.inf, math.inf])
def test_what_cannot_be_a_key_is_counted_and_ignored(key: float) -> None:
    bench = Bench(store=MemoryStore())
    good, bad = blocks("good")[0], blocks("bad")[0]
    bench.scorer._learner._answers = {good: NOW + 5.0, bad: key}
    assert bench.scorer.look_ahead(list) == {good: NOW + 5.0}
    assert bench.scorer.implausible == 1


SECRET = "what a user wrote"


def trusting_bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose guard has found that credit pays, and finds so at each request."""

    def pays(guard: Guard, *_: int) -> bool:
        guard.trusting = True
        return True

    monkeypatch.setattr(Guard, "observe", pays)
    bench = Bench(guard=True)
    bench.scorer.add_tier("cpu", 10, blocks=10, prompts_only=True)
    bench.finish("r")
    assert bench.scorer.trusting and bench.scorer.tiers[0].wanted
    return bench


def fail(*_: object) -> None:
    raise KeyError(SECRET)


@pytest.mark.parametrize("part", ["eviction_client.conversations.Conversations.name", "eviction_client.shadow.GhostCache.use"])
def test_after_a_failure_of_the_guard_the_order_is_lru(
    part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = trusting_bench(monkeypatch)
    with monkeypatch.context() as broken:
        broken.setattr(part, fail)
        bench.finish("s")
    assert not bench.scorer.trusting and not bench.scorer.tiers[0].wanted
    assert (bench.scorer.failures, bench.scorer.guard_failures) == (1, 1)
    assert "KeyError" in caplog.text and "test_scorer.py" in caplog.text and SECRET not in caplog.text
    assert bench.scorer.settle(0), "the request that failed is not waited for"


def test_credit_comes_back_only_with_new_evidence_and_never_after_three_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = trusting_bench(monkeypatch)
    for failures in (1, 2, 3):
        with monkeypatch.context() as broken:
            broken.setattr("eviction_client.conversations.Conversations.name", fail)
            bench.finish(f"failing {failures}")
        with monkeypatch.context() as shows_nothing:
            shows_nothing.setattr(Guard, "observe", lambda guard, *_: guard.trusting)
            bench.finish(f"without evidence {failures}")
            assert not bench.scorer.trusting, "the guard has begun again"
        bench.finish(f"with evidence {failures}")
        assert bench.scorer.trusting == (failures < 3)


def test_without_a_guard_a_failure_puts_lru_into_force_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(guard=False)
    with monkeypatch.context() as broken:
        broken.setattr("eviction_client.conversations.Conversations.name", fail)
        bench.finish("r")
    bench.finish("s")
    assert not bench.scorer.trusting


def test_a_failure_of_what_shows_metrics_does_not_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = trusting_bench(monkeypatch)
    bench.scorer.on_tick.append(fail)
    bench.scorer._ticked_at = -math.inf
    bench.finish("s")
    assert bench.scorer.trusting and (bench.scorer.failures, bench.scorer.guard_failures) == (1, 0)


def test_while_lru_is_in_force_nothing_is_pooled() -> None:
    bench = Bench(guard=True, store=MemoryStore())
    bench.scorer._learner._answers = {blocks("a")[0]: NOW + 5.0}
    assert bench.scorer.look_ahead(lambda: blocks("a")) == {}


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_a_day_never_lets_the_last_use_fall(bench: Bench, jump: float) -> None:
    seen = []
    for number in range(12):
        bench.now += 5.0 if number not in (4, 8) else jump if number == 4 else -jump
        seen.append(bench.finish(f"r{number}").t_last)
    assert seen == sorted(seen)
