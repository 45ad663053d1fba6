"""Load or compute in vLLM's offloading connector, with any choice: aborts, preemptions, resets, transfers that end late."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("vllm.v1.kv_offload.cpu.policies.lru", reason="vLLM before 0.31 has no such tier")

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from eviction_client.background import AtOnce
from eviction_client.engines.vllm_cpu.loads import CAP, TierLoads
from testing.bare_scheduler import BLOCK, Engine, vllm_config
from testing.cpu_tier import connector
from testing.engine_internals import request_states_of, transferred

pytestmark = pytest.mark.supports(engine="vLLM", tier="CPU tier", what="load or compute: aborts, preemptions, resets, P/D")

STEPS = 400


class Course:
    """An engine with a tier whose transfers end some steps later, and requests that come, end early and are preempted."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.scheduler, self.met = engine, engine.scheduler, random.Random(seed)
        self.under_way: list[tuple[int, int, Any, bool]] = []
        self.requests: list[Any] = []
        self.caps: set[Any] = set()
        schedule = self.scheduler.schedule

        def scheduled(*args: Any, **kwargs: Any) -> Any:
            planned = schedule(*args, **kwargs)
            meta = planned.kv_connector_metadata
            for job, what in (*meta.load_jobs.items(), *meta.store_jobs.items()):
                late = 0 if job in (meta.jobs_to_flush or ()) else self.met.randrange(4)
                self.under_way.append((self.steps + late, job, what, job in meta.load_jobs))
            return planned

        self.scheduler.schedule = scheduled
        self.steps = 0

    @property
    def tier(self) -> TierLoads:
        (loads,) = self.scheduler.lpc.loads
        return loads

    def step(self) -> None:
        """Step, and report the transfers that are due."""
        self.engine.step()
        self.steps += 1
        due = [each for each in self.under_way if each[0] < self.steps]
        self.under_way = [each for each in self.under_way if each[0] >= self.steps]
        worker = OffloadingWorkerMetadata(completed_jobs={job: 1 for _, job, _, _ in due})
        received = set()
        for _, _, what, loads in due:
            if loads:
                received.add(what.req_id)
                worker.transfer_stats.load.record(1024, self.met.choice([0.0, 1e-6, 0.1]))
        if due:
            transferred(self.scheduler, KVConnectorOutput(finished_recving=received, kv_connector_worker_meta=worker))
        self.caps |= {getattr(state, CAP) for state in request_states_of(self.scheduler.connector.connector_scheduler)}

    def run(self) -> None:
        """Run the course, until all requests have ended."""
        met, scheduler = self.met, self.scheduler
        prompts = [[6 + (31 * number + place * place) % 240 for place in range(12 * BLOCK)] for number in range(8)]
        for number in range(STEPS):
            if met.random() < (0.5 if number % 100 < 80 else 0.0):
                new = [6 + met.randrange(240) for _ in range(met.randrange(1, 40))]
                prompt = met.choice(prompts)[: met.randrange(1, 12 * BLOCK)]
                self.requests.append(self.engine.add(f"r{number}", [*prompt, *new], met.randrange(1, 60)))
            if scheduler.requests and met.random() < 0.1:
                scheduler.finish_requests([met.choice(list(scheduler.requests))], RequestStatus.FINISHED_ABORTED)
            if met.random() < 0.1 and not scheduler.requests:
                scheduler.reset_prefix_cache(reset_connector=met.random() < 0.5)
            self.step()
        for _ in range(2000):
            if not scheduler.requests:
                break
            self.step()
        for _ in range(8):
            self.step()


@pytest.fixture
def course() -> Iterator[Callable[..., Course]]:
    """Return a course, by its seed."""
    from vllm.config import KVTransferConfig

    config = vllm_config()
    before, block_size = config.kv_transfer_config, config.cache_config.block_size
    config.cache_config.block_size = BLOCK

    def build(seed: int, transfer: dict[str, Any] | None = None, **more: Any) -> Course:
        config.kv_transfer_config = KVTransferConfig(**(transfer or connector(60)))
        return Course(Engine(40, background=AtOnce, **{"rule": "lru", **more}), seed)

    yield build
    config.kv_transfer_config, config.cache_config.block_size = before, block_size


@pytest.mark.parametrize("window", [None, 4 * BLOCK], ids=["full attention", "sliding window"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_any_choice_in_any_course_leaves_nothing_behind(
    seed: int, asynchronous: bool, window: int | None, course: Callable[..., Course]
) -> None:
    run = course(seed, asynchronous=asynchronous, window=window)
    chooser = run.tier.chooser
    assert chooser is not None
    chooser.choose = lambda found, *_, **__: run.met.choice([0, found, run.met.randint(0, found)])  # type: ignore[method-assign]
    run.run()
    assert not run.scheduler.requests and run.engine.outcome.preempted > 0
    assert run.scheduler.lpc.plugin.failures == 0 and run.tier.chooser is chooser
    assert run.tier.tracked == 0 and not chooser.unended
    assert run.caps <= {None}
    preemptions = run.scheduler.lpc.preemptions
    assert not preemptions.pending
    assert preemptions.requests == sum(request.num_preemptions for request in run.requests)
    assert preemptions.again <= preemptions.held >= preemptions.least
