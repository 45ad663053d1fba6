"""However vLLM ends a request, the plug-in keeps nothing of it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.v1.request import Request, RequestStatus

from eviction_client.background import AtOnce
from eviction_client.engines.vllm import requests as requests_read
from eviction_client.transport.client import PredictorClient
from testing.bare_scheduler import BLOCK, Engine
from tests.reachable import names_in, reached

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="every way in which its scheduler ends a request")

MARK = "the-caller-named-this"
ABORTED, ERROR = RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR


class Remote(KVConnectorBase_V1):  # type: ignore[misc]  # mypy runs where vLLM is not installed
    """Loads the first block of each prompt from elsewhere, when the test says so."""

    def __init__(self) -> None:
        # Not vLLM's, which needs a configuration of transfers.
        self._role, self._connector_metadata = KVConnectorRole.SCHEDULER, None
        self.loads, self.sends = True, False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return (BLOCK, True) if self.loads and not num_computed_tokens else (0, False)

    def get_loaded_kv_cache_group_ids(self, _: Any) -> tuple[int, ...]:
        return ()

    def update_state_after_alloc(self, *_: Any) -> None: ...
    def build_connector_meta(self, _: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, *_: Any) -> tuple[bool, None]:
        return self.sends, None

    def start_load_kv(self, *_: Any, **__: Any) -> None: ...
    def wait_for_layer_load(self, *_: Any) -> None: ...
    def save_kv_layer(self, *_: Any, **__: Any) -> None: ...
    def wait_for_save(self) -> None: ...


class Walk:
    """One engine, in which requests are ended. Their ids, sessions and salts contain MARK."""

    def __init__(self, *, asynchronous: bool, background: Any = AtOnce, blocks: int = 60, **settings: Any) -> None:
        settings = {"hints_share": 0.5, "rule": "auto", "pooling": "shared", **settings}
        self.engine = Engine(blocks, max_seqs=2, asynchronous=asynchronous, background=background, **settings)
        self.scheduler = self.engine.scheduler
        self.plugin = self.scheduler.lpc.plugin
        self.plugin.predictor = PredictorClient("127.0.0.1:9", timeout_s=600.0)  # nothing listens there
        self.count = 0

    def add(self, blocks: int = 3, reply: int = 4, **fields: Any) -> str:
        self.count += 1
        name = fields.pop("name", f"{MARK}-{self.count}")
        tokens = [6 + (7 * self.count + place) % 250 for place in range(blocks * BLOCK + 1)]
        arguments = {"session_id": f"{MARK} session", "lpc_retain_seconds": 60, "lpc_done": self.count % 2}
        self.engine.add(name, tokens, reply, arguments, f"{MARK} salt", **fields)
        return name

    def resumable(self, name: str | None = None, *, more: bool = True) -> str:
        return self.add(resumable=more, **({} if name is None else {"name": name}))

    def steps(self, count: int = 1) -> None:
        for _ in range(count):
            self.engine.step()

    def crowd(self) -> list[str]:
        """Let two requests run and three wait, of which the plug-in has counted some."""
        names = [self.add(reply=30) for _ in range(5)]
        self.steps(3)
        return names

    def abort(self, *names: str, status: RequestStatus = ABORTED) -> None:
        self.scheduler.finish_requests(names or None, status)

    def drain(self) -> None:
        for _ in range(200):
            self.engine.step()
        assert not self.scheduler.requests

    def left(self) -> dict[str, object]:
        assert self.plugin.settle(60.0)
        return names_in(
            self.scheduler.lpc, lambda one: isinstance(one, Request) or (isinstance(one, str | bytes) and MARK in str(one))
        )


def length(walk: Walk) -> None:
    walk.add()


def stop_token(walk: Walk) -> None:
    name = walk.add(reply=30)
    parameters = walk.scheduler.requests[name].sampling_params
    parameters.ignore_eos, parameters.stop_token_ids = False, list(range(256))


def model_length(walk: Walk) -> None:
    walk.scheduler.max_model_len = 60
    walk.add(reply=100)


def abort_before_a_step(walk: Walk) -> None:
    walk.abort(walk.add(), walk.add())


def abort_at_once(walk: Walk) -> None:
    walk.abort(walk.add(abort_immediately=True))


def abort_waiting(walk: Walk) -> None:
    walk.abort(*walk.crowd()[2:])


def abort_running(walk: Walk) -> None:
    walk.abort(*walk.crowd()[:2])


def abort_all(walk: Walk) -> None:
    walk.crowd()
    walk.abort()


def abort_twice_and_unknown(walk: Walk) -> None:
    names = walk.crowd()
    walk.abort(*names)
    walk.abort(*names, "unknown")


def error(walk: Walk) -> None:
    walk.abort(*walk.crowd()[1:4], status=ERROR)


def preempted(walk: Walk) -> None:
    names = walk.crowd()
    for request in list(walk.scheduler.running):
        walk.engine.preempt(request, drop_stale_output=True)
    walk.abort(names[0])


def reset_with_running(walk: Walk) -> None:
    walk.crowd()
    assert walk.scheduler.reset_prefix_cache(reset_running_requests=True)


def never_fits(walk: Walk) -> None:
    name = walk.add(blocks=80)
    walk.add()
    walk.steps(3)
    walk.abort(name)


def stream_ended_idle(walk: Walk) -> None:
    name = walk.resumable()
    walk.steps(12)
    assert walk.scheduler.requests[name].status == RequestStatus.WAITING_FOR_STREAMING_REQ
    walk.resumable(name, more=False)
    assert name not in walk.scheduler.requests


def stream_updated(walk: Walk) -> None:
    name = walk.resumable()
    walk.steps(12)
    walk.resumable(name)
    walk.steps(12)
    walk.resumable(name, more=False)


def stream_ended_running(walk: Walk) -> None:
    name = walk.resumable()
    walk.steps(2)
    walk.resumable(name)
    walk.resumable(name, more=False)


def stream_aborted(walk: Walk) -> None:
    idle, running = walk.resumable(), walk.resumable()
    walk.steps(12)
    walk.resumable(running)
    walk.steps(1)
    walk.abort(idle, running)


def duplicate(walk: Walk) -> None:
    name = walk.add()
    with pytest.raises(AssertionError, match="duplicate"):
        walk.add(name=name)


def same_id_again(walk: Walk) -> None:
    name = walk.add()
    walk.drain()
    walk.add(name=name)


def embeddings(walk: Walk) -> None:
    walk.add(prompt_token_ids=None, prompt_embeds=torch.zeros(40, 64))
    walk.abort(walk.add(prompt_token_ids=None, prompt_embeds=torch.ones(40, 64)))


def one_token(walk: Walk) -> None:
    walk.add(blocks=0, reply=1)


def deferred_free(walk: Walk) -> None:
    walk.scheduler.defer_block_free = True
    walk.abort(*walk.crowd())
    assert not walk.engine.asynchronous or walk.scheduler.deferred_frees


def remote(walk: Walk) -> tuple[Remote, list[str]]:
    connector = walk.scheduler.connector = Remote()
    names = [walk.add(), walk.add()]
    walk.steps(2)
    statuses = {walk.scheduler.requests[name].status for name in names}
    assert statuses == {RequestStatus.WAITING_FOR_REMOTE_KVS}
    return connector, names


def loaded(walk: Walk) -> None:
    _, names = remote(walk)
    walk.engine.transferred(received=names)


def load_failed(walk: Walk) -> None:
    connector, names = remote(walk)
    connector.loads = False
    first = walk.scheduler.requests[names[0]]
    first.num_computed_tokens = 0
    walk.scheduler.failed_recving_kv_req_ids.add(names[0])
    walk.engine.transferred(received=names)


def abort_loading(walk: Walk) -> None:
    _, names = remote(walk)
    walk.abort(*names)
    assert walk.scheduler.requests
    walk.engine.transferred(received=names)


def sent_later(walk: Walk) -> None:
    connector, names = remote(walk)
    connector.sends = True
    walk.engine.transferred(received=names)
    walk.steps(12)
    assert walk.scheduler.requests
    walk.engine.transferred(sent=names)


ENDS = (
    *(length, stop_token, model_length, abort_before_a_step, abort_at_once, abort_waiting, abort_running, abort_all),
    *(abort_twice_and_unknown, error, preempted, reset_with_running, never_fits, stream_ended_idle, stream_updated),
    *(stream_ended_running, stream_aborted, duplicate, same_id_again, embeddings, one_token, deferred_free, loaded),
    *(load_failed, abort_loading, sent_later),
)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("schedule", ["fcfs", "warm-first"])
def test_nothing_of_an_ended_request_is_left(end: Callable[[Walk], None], asynchronous: bool, schedule: str) -> None:
    walk = Walk(asynchronous=asynchronous, schedule=schedule)
    end(walk)
    walk.drain()
    assert walk.left() == {}
    assert walk.plugin.failures == 0 and not walk.plugin.predictor.waiting
    queue = walk.engine.pool.free_block_queue
    assert not queue.waiting and not queue.keeps
    assert queue.num_free_blocks == len(queue.get_all_free_blocks()) == 59, "all blocks but vLLM's null block"
    walk.plugin.close()


def test_ended_streams_do_not_stop_keeping_for_other_requests(asynchronous: bool) -> None:
    walk = Walk(asynchronous=asynchronous)
    for _ in range(300):
        stream_ended_idle(walk)
    names = walk.crowd()
    assert set(walk.scheduler.lpc.keep.counted) <= set(names) and walk.engine.pool.free_block_queue.waiting
    walk.abort()
    walk.drain()
    assert walk.left() == {}


@pytest.mark.parametrize("read", ["session_of", "hints_of", "tenant_of", "reply_end_of", "completed"])
def test_an_end_that_cannot_be_read_leaves_nothing(read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Request) -> None:
        raise RuntimeError("of a later release")

    walk = Walk(asynchronous=False)
    walk.crowd()
    monkeypatch.setattr(f"eviction_client.engines.vllm.hooks.{read}", fail)
    walk.drain()
    assert walk.left() == {} and walk.plugin.failures == 5
    assert getattr(requests_read, read) is not fail


def test_a_shutdown_with_running_requests_leaves_no_question_and_no_thread() -> None:
    walk = Walk(asynchronous=False)
    walk.crowd()
    client = walk.plugin.predictor
    assert client.waiting
    walk.scheduler.shutdown()
    assert not [path for path, one in reached(client) if isinstance(one, str) and MARK in one]
    threads = {one for _, one in reached(client) if isinstance(one, threading.Thread)}
    assert len(threads) == 2 and not any(thread.is_alive() for thread in threads)


def test_the_walk_finds_what_runs() -> None:
    walk = Walk(asynchronous=False)
    walk.crowd()
    found = walk.left()
    for table in ("plugin.requests", "counted", "_requests", "_waiters"):
        assert any(table in path for path in found), table
    walk.plugin.close()
