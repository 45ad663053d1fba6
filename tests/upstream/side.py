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
RELEASE = "0.33.0"
BLOCKS = 60


def patched(release: Path, folder: Path) -> Path:
    """Copy a release's Python files, apply the patch, and return the folder."""
    shutil.copytree(release, folder)
    subprocess.run(["git", "apply", PATCH], cwd=folder, check=True)
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

    def ask(self, mode: str, **arguments: Any) -> Any:
        """Return the answer of one of the functions below."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"mode": mode, **arguments}), file=self._process.stdin, flush=True)
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

    from benchmarks import bare_scheduler
    from benchmarks.bare_scheduler import Engine, conversations, oracle
    from eviction_client.background import AtOnce
    from eviction_client.settings import ClientSettings
    from eviction_client.transport.scripted_predictor import ScriptedPredictor

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
                request.kv_hints = KvHintsEnvelope("1.0", name, [KvHintAction("1", "kv.retain", "1.0", {"seconds": 20})])
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


def retain(cases: list[tuple[str, str, Any]]) -> dict[str, Any]:
    """Return what the patch's reader of ``kv.retain`` makes of each action's type, version and payload, and of no hints."""
    from vllm.v1.kv_hints import KvHintAction, KvHintsEnvelope, retain_seconds

    envelopes = [KvHintsEnvelope("1.0", "m", [KvHintAction("1", *case)]) for case in cases]
    return {"seconds": [retain_seconds(envelope) for envelope in [*envelopes, None]]}


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        answer = retain(asked["cases"]) if asked["mode"] == "retain" else serve(**asked)
        print(json.dumps(answer), flush=True)
