"""A process with stock or patched files of vLLM: reads a request of JSON a line, serves conversations, writes a line of JSON.

`Side` starts one. Its body needs vLLM; starting it does not.
"""

import gc
import json
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATCH = ROOT / "docs/contributing/vllm-0.33.patch"
WARM_FIRST = ROOT / "docs/contributing/vllm-0.33-warm-first.patch"
RELEASE = "0.33.0"
BLOCKS = 60


def patched(release: Path, folder: Path, *patches: Path) -> Path:
    """Copy a release's Python files, apply the patches, and return the folder."""
    shutil.copytree(release, folder)
    for patch in patches:
        subprocess.run(["git", "apply", patch], cwd=folder, check=True)
    return folder


class Side:
    """A running process. ``files``: the folder that holds its vLLM."""

    def __init__(self, files: Path) -> None:
        path = f"{files}{os.pathsep}{ROOT}"
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "VLLM_LOGGING_LEVEL": "ERROR",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
        }
        command = [sys.executable, "-m", "tests.upstream.side"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)

    def ask(self, function: str, mode: str | None = None, **arguments: Any) -> Any:
        """Return the answer of one of the functions below. ``mode``: its mode, if it has one."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(
            json.dumps({"function": function, **({} if mode is None else {"mode": mode}), **arguments}),
            file=self._process.stdin,
            flush=True,
        )
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError("the process has ended")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def serve(mode: str, *, asynchronous: bool = False, count: int = 120) -> dict[str, Any]:
    """Serve conversations on the scheduler. Modes: ``stock``, ``attached`` (as to a released vLLM), ``factory``."""
    from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope

    from eviction_client.background import AtOnce
    from eviction_client.settings import ClientSettings
    from eviction_client.transport.scripted_predictor import ScriptedPredictor
    from testing import bare_scheduler
    from testing.bare_scheduler import Engine, conversations, oracle

    made = conversations(1, count)
    settings: dict[str, Any] = {"hints_share": 0.2, "keep_waiting": True}
    options: dict[str, Any] = {}
    cache = bare_scheduler.vllm_config().cache_config
    if mode == "factory":
        from tests.upstream import learned

        cache.free_block_queue, cache.free_block_queue_module_path = "LearnedQueue", learned.__name__
        learned.LearnedQueue.settings = ClientSettings(pooling="off", rule="value", **settings)
        learned.LearnedQueue.predictor = ScriptedPredictor(oracle(made))
        learned.LearnedQueue.clock = staticmethod(lambda: engines[0].now)
        options["scheduler_cls"] = learned.LearnedAsyncScheduler if asynchronous else learned.LearnedScheduler
    elif mode == "attached":
        options = {"learned": True, "script": oracle(made), "background": AtOnce, **settings}
    engines: list[Engine] = []

    class Hinted(Engine):
        """Sends every third request with an action ``kv.retain``."""

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            engines.append(self)
            super().__init__(*arguments, **keywords)

        def add(self, name: str, *arguments: Any) -> Any:  # type: ignore[override]
            request = super().add(name, *arguments)
            if len(self.outcome.outputs) % 3 == 0:
                request.kv_hints = KvHintsEnvelope("0.1", name, [KvHintAction("1", "kv.retain", "1.0", {"seconds": 20})])
            return request

    engine = Hinted(BLOCKS, **{"learned": False, "asynchronous": asynchronous, **options})
    gc.collect()
    times = [time.thread_time_ns()]
    times += [time.thread_time_ns() for _ in engine.steps(made)]
    parts = (engine.scheduler, engine.scheduler.kv_cache_manager, engine.pool)
    replaced = [name for part in parts for name in vars(part) if callable(getattr(type(part), name, None))]
    plugin = getattr(engine.scheduler, "lpc", None)
    found = {
        "outputs": engine.outcome.outputs,
        "evicted": engine.outcome.evicted,
        "cached": engine.outcome.cached,
        "preempted": engine.outcome.preempted,
        "step_ns": [end - start for start, end in pairwise(times)],
        "replaced": replaced,
        "plugin": plugin and {"hinted": plugin.plugin.hinted, "ended": plugin.plugin.ended, "failures": plugin.plugin.failures},
    }
    cache.free_block_queue = "lru"
    engine.scheduler.shutdown()
    return found


def busy(mode: str, *, asynchronous: bool = False, overtake_s: float = 3600.0) -> dict[str, Any]:
    """Serve more conversations than fit, as if the cache thrashed whenever requests wait.

    Args:
        mode: ``stock``, ``attached`` (the plug-in's queue) or ``policy`` (the patch's).
        overtake_s: bound of overtaking, seconds of prefill.
    """
    from testing import bare_scheduler
    from testing.bare_scheduler import Engine, conversations

    options: dict[str, Any] = {"learned": False}
    scheduling = bare_scheduler.vllm_config().scheduler_config
    if mode != "stock":
        if mode == "policy":
            import vllm.v1.core.sched.warm_first as order

            scheduling.policy, scheduling.max_overtake_s = "warm-first", overtake_s
        else:
            from eviction_client.schedule import warm_first as order  # type: ignore[no-redef]

            options = {"rule": "lru", "keep_waiting": False, "schedule": "warm-first", "overtake_s": overtake_s}
        order.REPEATED, order.GATE = 0.0, 0.1  # type: ignore[misc]
    engine = Engine(90, asynchronous=asynchronous, **options)
    scheduling.policy = "fcfs"
    started: list[str] = []
    schedule = engine.scheduler.schedule

    def noted(*arguments: Any) -> Any:
        planned = schedule(*arguments)
        started.extend(request.req_id for request in planned.scheduled_new_reqs)
        return planned

    engine.scheduler.schedule = noted
    outcome = engine.run(conversations(1, 300, spread_s=30.0))
    engine.scheduler.shutdown()
    found: dict[str, Any] = {"outputs": outcome.outputs, "started": started, "cached": outcome.cached}
    if mode == "policy":
        queue = engine.scheduler.waiting
        found["held"] = [len(queue._blocks), len(queue._begun), len(queue._popped), len(queue._order)]
    return found


def stream(bound: int) -> dict[str, Any]:
    """Send short warm requests without end while a cold one waits; return how many overtook it. ``bound``: B in tokens."""
    engine = _warm_first(200, bound)
    _warm_and_cold(engine, 800)
    overtook = 0
    for number in range(2000):
        engine.add(f"warm {number}", _WARM, 2)
        engine.step()
        if any(request.request_id == "cold" for request in engine.scheduler.running):
            break
        overtook = sum(name.startswith("warm") for name in engine.outcome.outputs)
    return {"overtook": overtook}


def rounds(count: int) -> dict[str, Any]:
    """Ask prompts of three times the cache in turn, ``count`` times each; return what a warm request then does."""
    engine = _warm_first(100, 10_000, repeated=0.5)
    for number in range(count * 30):
        engine.add(f"{number}", [200 + number % 30, *range(300, 300 + 10 * 16)], 2)
        while engine.scheduler.has_unfinished_requests():
            engine.step()
    repeated = engine.scheduler.waiting._repeated.share
    _warm_and_cold(engine, 800)
    engine.add("warm", _WARM, 2)
    while not {"cold", "warm"} & engine.outcome.outputs.keys():
        engine.step()
    return {"repeated": repeated, "first": "warm" if "warm" in engine.outcome.outputs else "cold"}


_WARM = [*range(6, 6 + 10 * 16), 8, 9]


def _warm_first(blocks: int, bound: int, repeated: float = 0.0) -> Any:
    """Return an engine with the patch's policy, one request at a time, and a bound in tokens."""
    import vllm.v1.core.sched.warm_first as order
    from vllm.v1.core.sched.prefill import START_SPEED

    from testing import bare_scheduler

    order.REPEATED, order.GATE = repeated, 0.1  # type: ignore[misc]
    scheduling = bare_scheduler.vllm_config().scheduler_config
    scheduling.policy, scheduling.max_overtake_s = "warm-first", bound / START_SPEED
    engine = bare_scheduler.Engine(blocks, learned=False, max_seqs=1)
    scheduling.policy = "fcfs"
    engine.scheduler.waiting._speed.note = lambda *_: None  # time is virtual here
    return engine


def _warm_and_cold(engine: Any, cold_tokens: int) -> None:
    """Cache a prompt, let another request run, and let a cold one wait."""
    engine.add("first", _WARM[:-2], 2)
    while engine.scheduler.has_unfinished_requests():
        engine.step()
    engine.add("running", range(50, 60), 30)
    engine.step()
    engine.add("cold", [7, *range(10, 9 + cold_tokens)], 2)


def retain(cases: list[tuple[str, str, Any]]) -> dict[str, Any]:
    """Return what the patch's reader of ``kv.retain`` makes of each action's type, version and payload, and of no hints."""
    from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope, retain_seconds

    envelopes = [KvHintsEnvelope("0.1", "m", [KvHintAction("1", *case)]) for case in cases]
    return {"seconds": [retain_seconds(envelope) for envelope in [*envelopes, None]]}


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        functions = {"retain": retain, "busy": busy, "stream": stream, "rounds": rounds, "serve": serve}
        answer = functions[asked.pop("function")](**asked)
        print(json.dumps(answer), flush=True)
