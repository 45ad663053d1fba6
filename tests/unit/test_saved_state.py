"""What a plug-in has learned outlives a restart of its engine, and no file can harm the engine."""

import hashlib
import json
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eviction_client.background import AtOnce
from eviction_client.pace import finish
from eviction_client.plugin import Plugin
from eviction_client.policy.fits import REFIT_S
from eviction_client.policy.policy import Policy
from eviction_client.policy.request import Span, TrackedRequest
from eviction_client.policy.reuse_monitor import HALF_LIFE_S
from eviction_client.policy.saved import ALIKE, restore, saving
from eviction_client.settings import ClientSettings
from eviction_client.state_file import MAX_BYTES, StateFile
from eviction_client.stores import BlockHash
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from tests.clock import Clock

NOW = 1.7e9
CAPACITY = 300
BLOCK = 16


def blocks(name: str, number: int) -> list[BlockHash]:
    return [BlockHash(hashlib.sha256(f"{name}/{n}".encode()).digest()) for n in range(number)]


class Engine:
    """A policy of an engine whose requests take no time."""

    def __init__(self, clock: Clock, *, capacity: int = CAPACITY, block_tokens: int = BLOCK, rule: str = "auto") -> None:
        self.clock = clock
        self.policy: Policy[BlockHash] = Policy(capacity, block_tokens=block_tokens, clock=clock, rule=rule)

    def serve(
        self, chain: Sequence[BlockHash], prompt: int | None = None, tenant: str = "", *, ends: bool = False
    ) -> list[Span]:
        now = self.clock.now
        length = len(chain) if prompt is None else prompt
        request: TrackedRequest[BlockHash] = TrackedRequest("r", chain[:length], started_at=now, tenant=tenant)
        self.policy.started(request)
        self.policy.finished(
            request, chain, length, now, reply_end=chain[-1][0] % 3 if ends else None, log_odds=0.5 if len(chain) % 2 else None
        )
        self.policy.learn(request)
        if self.policy.refit_due(now):
            self.policy.refit(now)
        return list(request.parts)

    def chats(self, seed: int, requests: int = 250, *, divided: bool = True) -> None:
        """Serve conversations that share a system prompt, and a loop larger than the cache. ``divided``: among tenants."""
        draw = random.Random(seed)
        for number in range(requests):
            self.clock.now += draw.expovariate(0.5)
            turn = 1 + number % 4
            name = f"{seed} {number // 40} {draw.randrange(10)}"
            self.serve(
                blocks("system", 4) + blocks(name, 4 * turn),
                4 + 4 * turn - 2,
                tenant=("", "a", "b")[number % 3 * divided],
                ends=divided,
            )
            self.serve(blocks(f"loop {number % 90}", 5))

    def state(self) -> list[Any]:
        """Return the state as a file has it."""
        found: list[Any] = json.loads(json.dumps(finish(saving(self.policy, self.clock.now))))
        return found

    def restarted(self, age_s: float = 0.0, **more: Any) -> "tuple[Engine, bool]":
        engine = Engine(self.clock, **more)
        return engine, restore(engine.policy, self.state(), self.clock.now, age_s)


@pytest.fixture(scope="module")
def learned() -> Engine:
    engine = Engine(Clock(NOW))
    engine.chats(1)
    return engine


def test_a_restarted_engine_knows_gaps_turns_and_uses_of_the_blocks_as_if_it_had_gone_on() -> None:
    engine = Engine(Clock(NOW))
    engine.chats(2, divided=False)
    again, _ = engine.restarted()
    for number in range(200):
        engine.clock.now += 1.0
        chain = blocks("system", 4) + blocks(f"2 {6 - number % 3} {number % 10}", 4 + 4 * (number % 4))
        of_both = [[part.features for part in one.serve(chain)] for one in (engine, again)]
        assert of_both[0] == of_both[1]


def test_a_restarted_engine_has_the_rule_and_nearly_the_tables_of_the_one_before(learned: Engine) -> None:
    learned.policy.refit(learned.clock.now)
    again, guarded = learned.restarted()
    assert guarded and again.policy.in_force == learned.policy.in_force
    assert again.policy.ghosts.guard.saved() == learned.policy.ghosts.guard.saved()
    assert again.policy.monitor.mean_gap_s == pytest.approx(learned.policy.monitor.mean_gap_s)


def test_classes_without_tenant_and_end_of_reply_have_the_tables_that_they_had() -> None:
    engine = Engine(Clock(NOW))
    engine.chats(6, divided=False)
    engine.policy.refit(engine.clock.now)
    again, _ = engine.restarted()
    before, now = engine.policy.tables_of("value"), again.policy.tables_of("value")
    assert before is not None and now is not None
    both = [(engine.policy.combined.numbers[key], number) for key, number in again.policy.combined.numbers.items() if any(key)]
    assert len(both) > 10
    assert all(
        [*now[new]] == pytest.approx([*before[old]], rel=0.02) for old, new in both if old in engine.policy.combined.used
    )


def test_what_is_restored_and_saved_again_is_the_same(learned: Engine) -> None:
    again, _ = learned.restarted()
    first, second = learned.state(), again.state()
    assert second[0]["uses"] == first[0]["uses"] and second[0]["guard"] == first[0]["guard"]
    of = [{tuple(key): at_risk[0] for key, _, at_risk in state[1 : 1 + state[0]["classes"]]} for state in (first, second)]
    assert of[0].keys() == of[1].keys()
    assert all(of[0][key] == pytest.approx(of[1][key], rel=0.01) for key in of[0])


def test_counts_lose_weight_for_the_time_in_which_no_engine_ran(learned: Engine) -> None:
    weights = [
        sum(
            sum(at_risk) for _, at_risk in finish(learned.restarted(age_s)[0].policy.monitor.counts(learned.clock.now)).values()
        )
        for age_s in (0.0, HALF_LIFE_S)
    ]
    assert weights[1] == pytest.approx(weights[0] / 2)


@pytest.mark.parametrize(
    ("more", "guarded", "knows"),
    [
        ({"capacity": int(CAPACITY * (1 + ALIKE / 2))}, True, True),
        ({"capacity": 3 * CAPACITY}, False, True),
        ({"block_tokens": 2 * BLOCK}, False, False),
        ({"rule": "lpc"}, False, True),
    ],
    ids=["a little larger", "three times as large", "other blocks", "a rule in force"],
)
def test_the_guard_goes_on_only_in_a_cache_like_that_before(
    learned: Engine, more: dict[str, Any], guarded: bool, knows: bool
) -> None:
    again, goes_on = learned.restarted(**more)
    assert goes_on is guarded
    (first, *_) = again.serve(blocks("system", 4))
    assert (first.features.level > 0) is knows


def test_no_name_of_a_tenant_and_no_end_of_a_reply_is_saved(learned: Engine) -> None:
    classes = learned.state()[1 : 1 + learned.state()[0]["classes"]]
    assert {(key[3], key[6]) for key, _, _ in classes} == {(0, 0)} and {key[4] for key, _, _ in classes} == {0, 1}


STATE = [json.dumps(line) for line in (lambda engine: (engine.chats(3, 60), engine.state())[1])(Engine(Clock(NOW)))]
ODD = st.sampled_from(
    [None, True, -1, 0, 1, 2**70, 1e300, -1e-9, float("nan"), float("inf"), "", "AAAA", "!", [], {}, [[]], [1e29]]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values within a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inside for found in places(each, (*path, key)))]


PLACES = [place for place in places([json.loads(line) for line in STATE]) if place]
OF_KINDS = sorted({tuple("#" if isinstance(key, int) else key for key in place) for place in PLACES}, key=str)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_damaged_state_is_refused_whole_or_does_no_harm(data: st.DataObject) -> None:
    state = [json.loads(line) for line in STATE]
    kind = data.draw(st.sampled_from(OF_KINDS))
    alike = [place for place in PLACES if tuple("#" if isinstance(key, int) else key for key in place) == kind]
    *way, last = data.draw(st.sampled_from(alike))
    inner: Any = state
    for key in way:
        inner = inner[key]
    if data.draw(st.booleans()):
        inner[last] = data.draw(ODD)
    else:
        del inner[last]
    engine = Engine(Clock(NOW + 10_000.0))
    before = engine.state()
    try:
        restore(engine.policy, state, engine.clock.now, 5.0)
    except ValueError:
        assert engine.state() == before
    engine.chats(4, 10)
    engine.clock.now += 2 * REFIT_S
    engine.chats(5, 10)
    tables = engine.policy.tables_of("value")
    assert tables is not None and all(0.0 <= value < float("inf") for table in tables for value in table)


def test_uses_from_the_future_are_forgotten_because_a_clock_was_set_back(learned: Engine) -> None:
    past = Engine(Clock(NOW - 3600.0))
    assert restore(past.policy, learned.state(), past.clock.now, 0.0)
    assert past.serve(blocks("system", 4))[0].features.level == 0


# The file, and the plug-in.


def plugin(folder: Path | None, clock: Clock) -> Plugin:
    return Plugin(
        ClientSettings(state=folder),
        capacity=CAPACITY,
        block_tokens=BLOCK,
        predictor=ScriptedPredictor(lambda _: None),
        clock=clock,
        background=AtOnce,
    )


def serve(of: Plugin, clock: Clock, requests: int = 300) -> None:
    for number in range(requests):
        clock.now += 2.0
        chain = blocks(f"suite {number % 60}", 6)
        of.admitted(number, [1, 2, 3], session=None)
        of.started(number, chain)
        of.finished(number, completed=True, blocks=chain, prompt_blocks=6)


def test_a_plugin_goes_on_from_the_state_of_the_engine_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(NOW)
    before = plugin(tmp_path / "new", clock)
    serve(before, clock)
    before.close()
    (file,) = (tmp_path / "new").glob("*.jsonl")
    assert file.stat().st_mode & 0o777 == 0o600
    with caplog.at_level(logging.INFO):
        after = plugin(tmp_path / "new", clock)
    assert f"goes on from {file}" in caplog.text and "classes" in caplog.text
    assert after.policy.in_force == before.policy.in_force and after.policy.fits.seen > 0
    after.started("again", blocks("suite 0", 6))
    assert after.requests["again"].gap_spans[0].features.gap > 0
    assert before.failures == after.failures == 0
    after.close()


def test_it_is_saved_every_five_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eviction_client.learner.SAVE_EVERY_S", 0.0)
    monkeypatch.setattr("eviction_client.learner.TICK_S", 0.0)
    clock = Clock(NOW)
    engine = plugin(tmp_path, clock)
    serve(engine, clock, 40)
    assert (tmp_path / "engine-0.jsonl").exists() and engine.failures == 0
    engine.close()


def test_engines_with_one_folder_have_a_file_each_and_leave_it_when_they_end(tmp_path: Path) -> None:
    first, second = StateFile(tmp_path), StateFile(tmp_path)
    assert (first.path, second.path) == (tmp_path / "engine-0.jsonl", tmp_path / "engine-1.jsonl")
    first.close()
    third = StateFile(tmp_path)
    assert third.path == tmp_path / "engine-0.jsonl"
    for each in (second, third):
        each.close()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}\n",
        "[1]\n",
        "nothing\n",
        '{"format": "learned-prefix-cache engine state", "at": NaN}\n',
        '{"format": "learned-prefix-cache engine state", "at": 1.0}\n{}\n',
        "\u00e9\n",
        "[" * 5000 + "\n",
    ],
)
def test_a_damaged_file_is_named_in_the_log_and_replaced_by_the_next_save(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "engine-0.jsonl").write_text(text)
    clock = Clock(NOW)
    engine = plugin(tmp_path, clock)
    assert "engine-0.jsonl is not used" in caplog.text and "from the beginning" in caplog.text
    serve(engine, clock, 20)
    engine.close()
    assert engine.failures == 0
    caplog.clear()
    again = plugin(tmp_path, clock)
    assert not caplog.text
    again.close()


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (tmp_path / "engine-0.jsonl").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert StateFile(tmp_path).read() is None
    assert f"more than {MAX_BYTES} bytes" in caplog.text


def test_without_a_usable_folder_the_plugin_learns_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    clock = Clock(NOW)
    engine = plugin(tmp_path / "file" / "folder", clock)
    serve(engine, clock, 100)
    engine.close()
    assert "nothing is kept in" in caplog.text and engine.failures == 0 and engine.policy.reused > 0


def test_a_state_from_which_learning_failed_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(NOW)
    before = plugin(tmp_path, clock)
    serve(before, clock)
    before.close()
    engine = plugin(tmp_path, clock)

    def fail(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr("eviction_client.policy.reuse_monitor.ReuseMonitor.started", fail)
    serve(engine, clock, 1)
    engine.close()
    assert engine.learner.guard_failures == 1 and not list(tmp_path.glob("*.jsonl"))
