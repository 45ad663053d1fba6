"""`lpc observe` on the KV events of vLLM's real scheduler, sent by vLLM's own publisher.

The tests compare its counts with those of a dry run of the plug-in in the same engine.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from vllm.v1.core.sched import scheduler as vllms

from benchmarks.bare_scheduler import Engine, conversations
from eviction_client.background import AtOnce
from lpc_apps.simulator.kv_events import KVEvents, KVEventsError
from lpc_apps.simulator.observer import Observer
from tests.eventually import until

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="KV events, from outside")

BLOCKS = 260


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine in a dry run. Its events have its virtual time."""
    engine = Engine(
        BLOCKS, background=AtOnce, shadow=True, guard=True, events=f"ipc://{tmp_path}/events", replay=f"ipc://{tmp_path}/again"
    )
    own = SimpleNamespace(**{**vars(time), "time": lambda: engine.now})
    monkeypatch.setattr(vllms, "time", own)
    yield engine
    engine.scheduler.shutdown()


def listening(folder: Path, *, replay: bool = False) -> KVEvents:
    events = KVEvents(f"ipc://{folder}/events", replay=f"ipc://{folder}/again" if replay else None)
    time.sleep(0.5)  # ZeroMQ connects in the background, and a publisher sends only to connected subscribers
    return events


def serve(engine: Engine, prompts: int, requests: int, every_s: float = 3.0) -> Iterator[None]:
    """Serve so many prompts of eight blocks in turn, like a repeated evaluation suite."""
    for number in range(requests):
        prompt = number % prompts
        engine.add(f"r{number}", [7 * prompt + 6, *(6 + (prompt * 31 + n) % 250 for n in range(135))], 3)
        while engine.scheduler.has_unfinished_requests():
            engine.step()
        engine.now += every_s
        yield


def observed(steps: Iterable[None], folder: Path) -> Observer:
    """Observe an engine during these steps; return the observations after its last event."""
    observer = Observer(BLOCKS)
    with contextlib.closing(listening(folder)) as events:
        for _ in steps:
            for batch in events.batches(0.0005):
                observer.see(batch)
        for batch in events.batches(1.0):
            observer.see(batch)
    observer.finish()
    return observer


def test_the_observed_gain_equals_that_of_a_dry_run(engine: Engine, tmp_path: Path) -> None:
    observer = observed(serve(engine, prompts=40, requests=400, every_s=9.0), tmp_path)
    inside, outside = engine.scheduler.lpc.plugin, observer.plugin
    assert outside is not None and observer.requests == 400 and observer.lost == 0
    gains = [(ghosts.value_hits - ghosts.lru_hits) / ghosts.asked for ghosts in (inside.ghosts, outside.ghosts)]
    assert gains[0] > 0.2
    assert gains[1] == pytest.approx(gains[0], rel=0.2)
    for source in ("cached", "evicted", "new"):
        assert outside.misses.tokens[source] == pytest.approx(inside.misses.tokens[source], rel=0.02, abs=100)
    assert inside.failures == outside.failures == 0


def test_conversations_are_observed_turn_by_turn(engine: Engine, tmp_path: Path) -> None:
    observer = observed(engine.steps(conversations(3, 120, spread_s=900.0)), tmp_path)
    inside, outside = engine.scheduler.lpc.plugin, observer.plugin
    assert outside is not None
    # A turn that fills no block causes no event.
    assert 0.9 * len(engine.outcome.outputs) < observer.requests <= len(engine.outcome.outputs)
    for source in ("cached", "evicted", "new"):
        assert outside.misses.tokens[source] == pytest.approx(inside.misses.tokens[source], rel=0.1, abs=100)


def test_lost_events_are_replayed_and_unavailable_ones_are_counted(engine: Engine, tmp_path: Path) -> None:
    watcher, observer = listening(tmp_path, replay=True), Observer(BLOCKS)
    forgetful = listening(tmp_path)
    for number, _ in enumerate(serve(engine, prompts=40, requests=40)):
        if number == 10:
            # As after an overflow: drop the unread events.
            for events in (watcher, forgetful):
                until(lambda events=events: events._socket.poll(0))
                while events._socket.poll(200):
                    events._socket.recv_multipart()
                events._next = 0
    again = list(watcher.batches(2.0))
    for batch in again:
        observer.see(batch)
    observer.finish()
    assert observer.requests == 40 and observer.lost == 0
    lost = list(forgetful.batches(2.0))
    assert sum(batch.lost for batch in lost) == len(again) - len(lost) > 0
    for events in (watcher, forgetful):
        events.close()


def test_an_endpoint_that_is_not_an_engine_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(KVEventsError, match="tcp://host:5557"):
        KVEvents("no address")
    zmq = pytest.importorskip("zmq")
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.linger = 0
        publisher.bind(f"ipc://{tmp_path}/events")
        for frames in ([b"a", b"b"], [b"", b"\0" * 8, b"text"]):
            # A socket that a failure leaves open would block the garbage collector in some later test.
            with contextlib.closing(listening(tmp_path)) as events:
                publisher.send_multipart(frames)
                with pytest.raises(KVEventsError, match="does not send KV events"):
                    list(events.batches(2.0))
