"""Load or compute in vLLM's offloading connector, without a model: what is decided, caps of callers, failures."""

import logging
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

import pytest

pytest.importorskip("vllm.v1.kv_offload.cpu.policies.lru", reason="vLLM before 0.31 has no such tier")

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiKVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from eviction_client.background import AtOnce
from eviction_client.engines.vllm.metrics import values_of
from eviction_client.engines.vllm_cpu.loads import MEASURED_STEPS, WRAPPED, StepTimes, TierLoads
from eviction_client.policy.loading import MEASURED_LOADS, LoadOrCompute
from testing.bare_scheduler import BLOCK, Engine, vllm_config
from testing.cpu_tier import connector
from testing.engine_internals import transferred

pytestmark = pytest.mark.supports(
    engine="vLLM", tier="CPU tier", what="load or compute, in its scheduler: by the seconds that its worker reports"
)

PROMPT = 12 * BLOCK
COMPUTED_S = 1e-3
"""Seconds of a step per token that it computes."""


class Peer(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # mypy runs where vLLM is not installed
    """Another engine, which has all but the last block of the prompts of requests that name it."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self.loading: list[str] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        found = request.num_tokens - BLOCK - num_computed_tokens if (request.kv_transfer_params or {}).get("from") else 0
        return found, found > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self.loading.append(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...


class Tiered:
    """An engine whose pool holds 3 of 8 prompts, and whose tier holds all. A request has a step of its own.

    Args:
        loaded_s: seconds per loaded token that the worker reports; None: it reports none, and each takes 20 x COMPUTED_S.
    """

    def __init__(self, engine: Any, loaded_s: float | None) -> None:
        self.engine, self.scheduler, self.loaded_s = engine, engine.scheduler, loaded_s
        self.prompts = [[100 * number + place % 90 + 6 for place in range(PROMPT)] for number in range(8)]
        self.loads: list[int] = []
        self.numbers = iter(range(10**6))
        self.load_jobs: dict[int, Any] = {}
        schedule = self.scheduler.schedule

        def scheduled(*args: Any, **kwargs: Any) -> Any:
            planned = schedule(*args, **kwargs)
            self.meta = planned.kv_connector_metadata
            engine.now += COMPUTED_S * planned.total_num_scheduled_tokens
            return planned

        self.scheduler.schedule = scheduled

    @property
    def tier(self) -> TierLoads:
        (loads,) = self.scheduler.lpc.loads
        return loads

    @property
    def chooser(self) -> LoadOrCompute:
        assert self.tier.chooser is not None
        return self.tier.chooser

    def serve(self, prompt: Sequence[int], **fields: Any) -> int:
        """Serve a request alone; return the tokens that it has loaded."""
        name = f"r{next(self.numbers)}"
        before = len(self.loads)
        new = [6 + int(digit) for digit in f"{len(self.loads):016}"[:BLOCK]]
        self.engine.add(name, [*prompt, *new], 2, **fields)
        while self.scheduler.has_unfinished_requests():
            self.step()
        for _ in range(2):
            self.step()
        return sum(self.loads[before:])

    def step(self) -> None:
        """Step; all transfers end after it."""
        self.engine.step()
        several = getattr(self.meta, "metadata", None)
        meta = several[-1] if several else self.meta
        jobs = {**meta.load_jobs, **meta.store_jobs}
        worker = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(jobs, 1))
        for job in meta.load_jobs.values():
            tokens = BLOCK * len(job.dst_spec.block_ids)
            self.loads.append(tokens)
            if self.loaded_s is None:
                self.engine.now += 20 * COMPUTED_S * tokens
            else:
                worker.transfer_stats.load.record(tokens * 1024, tokens * self.loaded_s)
        received = {job.req_id for job in meta.load_jobs.values()}
        report: Any = worker
        if several:
            peer = self.scheduler.connector.sub_connectors[0]
            received |= set(getattr(peer, "loading", ()))
            peer.loading = []
            report = MultiKVConnectorWorkerMetadata(metadata=(*(None for _ in several[:-1]), worker))
        transferred(self.scheduler, KVConnectorOutput(finished_recving=received, kv_connector_worker_meta=report))

    def rounds(self, count: int) -> list[int]:
        """Serve all prompts so many times; return the tokens that each request has loaded."""
        return [self.serve(prompt) for _ in range(count) for prompt in self.prompts]


@pytest.fixture
def tiered() -> Iterator[Callable[..., Tiered]]:
    """Return an engine with a tier, by the seconds per loaded token."""
    from vllm.config import KVTransferConfig

    config = vllm_config()
    before, block_size = config.kv_transfer_config, config.cache_config.block_size
    config.cache_config.block_size = BLOCK

    def build(loaded_s: float | None, transfer: dict[str, Any] | None = None, **more: Any) -> Tiered:
        config.kv_transfer_config = KVTransferConfig(**(transfer or connector(400)))
        return Tiered(Engine(40, background=AtOnce, **{"rule": "lru", **more}), loaded_s)

    yield build
    config.kv_transfer_config, config.cache_config.block_size = before, block_size


MEASURED = 1 + -(-max(MEASURED_LOADS, MEASURED_STEPS) // 8)
"""Rounds until enough is measured; the first loads nothing."""


def test_what_takes_less_time_by_the_reported_seconds_is_done(tiered: Callable[..., Tiered]) -> None:
    fast, slow = tiered(COMPUTED_S / 20), tiered(COMPUTED_S * 20)
    for engine in (fast, slow):
        assert engine.rounds(MEASURED)[-8:] == [PROMPT] * 8, "stock until enough is measured"
    assert fast.rounds(2) == [PROMPT] * 16
    assert slow.rounds(2) == [0] * 16
    assert slow.chooser.chosen["computed"] == 16 and slow.chooser.stock.gained > 0
    prefill_s = slow.chooser.prefill_s()
    assert prefill_s is not None and prefill_s == pytest.approx(COMPUTED_S, rel=0.1)
    assert slow.chooser.transfers.token_s == pytest.approx(COMPUTED_S * 20)
    values = values_of(slow.scheduler.lpc)
    assert values["lpc_tier_choices", "cpu,computed"] == 16 and values["lpc_tier_loads_all", "cpu"] == 0.0
    assert values["lpc_tier_gained_seconds", "cpu"] > 0
    assert values["lpc_failures", ""] == 0


def test_without_reported_seconds_a_load_takes_from_its_start_to_its_end(tiered: Callable[..., Tiered]) -> None:
    engine = tiered(None)
    engine.rounds(MEASURED)
    assert engine.chooser.transfers.seconds(PROMPT) == pytest.approx(20 * COMPUTED_S * PROMPT, rel=0.01)
    assert engine.rounds(1) == [0] * 8


def test_a_part_is_loaded_up_to_a_chunk_and_the_rest_computed(tiered: Callable[..., Tiered]) -> None:
    engine = tiered(COMPUTED_S)
    engine.rounds(1)
    engine.chooser.choose = lambda found, *_, **__: found // 2 + 1  # type: ignore[method-assign]
    loaded = engine.rounds(1)
    assert loaded == [PROMPT // 2] * 8
    assert [engine.engine.outcome.hits[f"r{number}"] for number in range(8, 16)] == [PROMPT // 2] * 8
    assert engine.scheduler.lpc.plugin.failures == 0


def test_with_a_sliding_window_all_or_nothing_is_loaded(tiered: Callable[..., Tiered]) -> None:
    """vLLM has no hit at a part of a prompt there."""
    engine = tiered(COMPUTED_S * 20, window=4 * BLOCK)
    assert not engine.chooser.parts
    engine.rounds(MEASURED)
    assert engine.chooser.loads_all is False
    assert set(engine.rounds(1)) == {0}


@pytest.mark.parametrize("loaded_s", [COMPUTED_S * 20, COMPUTED_S / 20])
def test_the_cap_of_a_caller_holds(loaded_s: float, tiered: Callable[..., Tiered]) -> None:
    engine = tiered(loaded_s)
    engine.rounds(MEASURED)
    decided = dict(engine.chooser.chosen)
    caps = [0, 3 * BLOCK, 12 * BLOCK, 3 * BLOCK + 1, 2**63]
    loaded = [
        engine.serve(prompt, arguments={"kv_transfer_params": {"max_load_tokens": cap}})
        for prompt, cap in zip(engine.prompts, caps, strict=False)
    ]
    assert loaded == [0, 3 * BLOCK, 12 * BLOCK, 3 * BLOCK, PROMPT]
    assert engine.chooser.chosen == decided


@pytest.mark.parametrize(
    "of_router",
    [
        {"do_remote_prefill": True, "remote_engine_id": "p", "remote_block_ids": [1]},
        {"remote_prefiller": {"remote_host": "p", "remote_port": 1}},
        {"remote_kv_source": {"remote_host": "p", "remote_port": 1}},
        {"do_remote_prefill": False, "remote_block_ids": [1]},
    ],
    ids=["pulled", "prefilled by a peer", "from a peer", "after its pull"],
)
def test_what_another_engine_has_computed_for_a_request_is_not_computed_again(
    of_router: dict[str, Any], tiered: Callable[..., Tiered]
) -> None:
    engine = tiered(COMPUTED_S * 20)
    engine.rounds(MEASURED)
    decided = dict(engine.chooser.chosen)
    assert [engine.serve(each, arguments={"kv_transfer_params": of_router}) for each in engine.prompts] == [PROMPT] * 8
    assert engine.chooser.chosen == decided


@pytest.mark.parametrize(
    "of_caller",
    [{}, {"do_remote_prefill": False}, *({"max_load_tokens": cap} for cap in (None, True, -1, "0", 1.0))],
    ids=repr,
)
def test_a_request_whose_parameters_ask_for_nothing_is_decided(
    of_caller: dict[str, Any], tiered: Callable[..., Tiered]
) -> None:
    engine = tiered(COMPUTED_S * 20)
    engine.rounds(MEASURED)
    parameters = MappingProxyType(of_caller)  # shared by all, and frozen
    assert [engine.serve(each, arguments={"kv_transfer_params": parameters}) for each in engine.prompts] == [0] * 8


def test_the_cap_of_a_decision_is_gone_from_the_request_and_from_vllm(tiered: Callable[..., Tiered]) -> None:
    engine = tiered(COMPUTED_S * 20)
    engine.rounds(MEASURED)
    parameters: dict[str, Any] = {"any": 1}
    request = engine.engine.add("one", [*engine.prompts[0], 7], 2, arguments={"kv_transfer_params": parameters})
    engine.step()
    assert engine.chooser.chosen["computed"] == 1
    state = engine.scheduler.connector.connector_scheduler.__dict__["_req_status"]["one"]
    assert state.max_load_tokens is None
    assert parameters == request.kv_transfer_params == {"any": 1}


def test_where_a_look_up_with_a_cap_fails_vllm_looks_up_without(
    tiered: Callable[..., Tiered], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler

    stock = scheduler.OffloadingConnectorScheduler.get_num_new_matched_tokens

    def refuses(
        self: Any, request: Any, num_computed_tokens: int, max_num_new_tokens: int | None = None
    ) -> tuple[int | None, bool]:
        assert self.__dict__["_req_status"][request.request_id].max_load_tokens is None
        found: tuple[int | None, bool] = stock(self, request, num_computed_tokens, max_num_new_tokens)
        return found

    monkeypatch.setattr(scheduler.OffloadingConnectorScheduler, "get_num_new_matched_tokens", refuses)
    engine = tiered(COMPUTED_S * 20)
    engine.rounds(MEASURED)
    assert engine.rounds(2) == [PROMPT] * 16
    assert engine.scheduler.lpc.plugin.failures == 1 and engine.tier.chooser is None


def test_a_failure_to_measure_steps_fails_no_step(tiered: Callable[..., Tiered], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiered(COMPUTED_S / 20)
    monkeypatch.setattr(StepTimes, "ends", lambda *_: 1 / 0)
    monkeypatch.setattr(StepTimes, "begins", lambda *_: 1 / 0)
    engine.rounds(1)
    assert min(engine.rounds(MEASURED)) >= PROMPT and engine.chooser.loads_all
    assert engine.scheduler.lpc.plugin.failures > 0


def test_what_another_connector_loads_is_not_counted_as_computed(tiered: Callable[..., Tiered]) -> None:
    peer = {"kv_connector": "Peer", "kv_connector_module_path": __name__, "kv_role": "kv_both"}
    several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [peer, connector(400)]},
    }
    engine = tiered(COMPUTED_S, several)
    computed: list[int] = []
    engine.chooser.computes = computed.append  # type: ignore[method-assign]
    engine.serve(engine.prompts[0])
    engine.serve(engine.prompts[1], arguments={"kv_transfer_params": {"from": "peer"}})
    assert computed == [PROMPT + BLOCK, BLOCK]
    assert engine.scheduler.lpc.plugin.failures == 0


def test_nothing_is_attached_if_one_of_several_connectors_does_not_fit(
    tiered: Callable[..., Tiered], monkeypatch: pytest.MonkeyPatch
) -> None:
    several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [connector(400), connector(400)]},
    }
    built = TierLoads.__init__

    def second_fails(self: TierLoads, name: str, *args: Any) -> None:
        if name == "cpu1":
            raise AttributeError("config")
        built(self, name, *args)

    monkeypatch.setattr(TierLoads, "__init__", second_fails)
    scheduler = tiered(1.0, several).scheduler
    assert scheduler.lpc.loads == []
    parts = [each.connector_scheduler for each in scheduler.connector.sub_connectors]
    assert not any(method in part.__dict__ for part in parts for method in WRAPPED)
    assert "update_from_output" not in scheduler.__dict__


@pytest.mark.parametrize("method", ["choose", "begin", "end", "computes", "drop", "under_way"])
def test_after_a_failure_all_is_loaded_and_it_is_counted_once(
    method: str, tiered: Callable[..., Tiered], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiered(COMPUTED_S * 20 if method in ("choose", "computes", "drop") else COMPUTED_S / 20)
    engine.rounds(MEASURED)

    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(LoadOrCompute, method, breaks)
    engine.rounds(1)
    assert engine.rounds(1) == [PROMPT] * 8
    assert engine.scheduler.lpc.plugin.failures == 1 and engine.tier.chooser is None
    assert values_of(engine.scheduler.lpc)["lpc_tier_loads_all", "cpu"] == 1.0


def test_nothing_is_chosen_where_the_operator_does_not_want_it(
    tiered: Callable[..., Tiered], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiered(1.0, load_or_compute=False).scheduler.lpc.loads == []
    assert tiered(1.0, shadow=True).scheduler.lpc.loads == []
    forced = tiered(COMPUTED_S * 20)
    forced.rounds(MEASURED)
    monkeypatch.setattr(type(forced.scheduler.lpc.plugin), "lru_forced", True)
    assert forced.rounds(1) == [PROMPT] * 8


def test_a_tier_under_vllms_own_order_and_one_among_several_connectors_choose_too(tiered: Callable[..., Tiered]) -> None:
    own = tiered(COMPUTED_S * 20, connector(400, eviction_policy="lru"))
    several = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [connector(400)]},
    }
    assert [tier.name for tier in tiered(1.0, several).scheduler.lpc.loads] == ["cpu"]
    own.rounds(MEASURED)
    assert own.rounds(1) == [0] * 8


def test_what_is_remembered_of_a_request_ends_with_it(tiered: Callable[..., Tiered]) -> None:
    engine = tiered(COMPUTED_S / 20, max_seqs=1)
    engine.rounds(1)
    for prompt in engine.prompts:
        engine.engine.add(f"aborted{prompt[0]}", prompt, 2)
    engine.step()
    assert engine.tier.tracked == 8
    engine.scheduler.finish_requests([f"aborted{prompt[0]}" for prompt in engine.prompts], RequestStatus.FINISHED_ABORTED)
    for _ in range(3):
        engine.step()
    assert engine.tier.tracked == 0


def test_a_vllm_without_these_parts_loads_all_and_logs_it(
    tiered: Callable[..., Tiered], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler

    caplog.set_level(logging.WARNING, "eviction_client.engines.vllm.scheduler")
    monkeypatch.setattr(scheduler.OffloadingConnectorScheduler, "update_state_after_alloc", lambda self, other: None)
    assert tiered(1.0).scheduler.lpc.loads == []
    assert "update_state_after_alloc(request, blocks, num_external_tokens) is gone or takes other arguments" in caplog.text
