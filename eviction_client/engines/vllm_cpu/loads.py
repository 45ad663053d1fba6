"""Load or compute in vLLM's offloading connector (0.31 and later): :class:`LoadOrCompute` decides, vLLM's own cap acts.

When vLLM looks a waiting request up in the tier, its answer is what the tier has beyond the pool. If less is to be loaded, the
request's ``max_load_tokens`` is set and vLLM looks up again, which keeps the boundaries of chunks and of sliding windows. A
caller sets this cap as a parameter of ``kv_transfer_params``, which vLLM reads when a request arrives; a request with a cap of
its caller is left to vLLM. So is one whose blocks another engine has computed for it (disaggregated prefill, peers), because it
must not compute them again. A request is decided once, when it is first looked up, because only then are its hits, those that
wait behind it, and the loads under way those that count. Preempted requests are decided again.

Loads are measured by the seconds that vLLM's worker reports, prefill by those from a step's schedule, or the end of the step
before it, to its end. Loads that vLLM carries out within a step (``sync_load_budget_bytes``, 0.33) are left to it.

Only these instances are patched. Nothing here raises into the scheduler: after a failure vLLM loads all.
"""

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from eviction_client.plugin import Plugin
from eviction_client.policy.loading import LoadOrCompute, TimeByTokens
from eviction_client.schedule.prefill import LONGEST_STEP_S

MEASURED_STEPS: Final = 16
"""Steps with prompts to measure before the first choice."""
MOST_STEPS: Final = 64
"""Steps in flight that are remembered."""
WRAPPED: Final = {
    "on_new_request": ["request"],
    "get_num_new_matched_tokens": ["request", "num_computed_tokens", "max_num_new_tokens"],
    "update_state_after_alloc": ["request", "blocks", "num_external_tokens"],
    "update_connector_output": ["connector_output"],
    "request_finished": ["request"],
}
"""Methods of the connector's scheduler that are wrapped, and their parameters."""
CAP: Final = "max_load_tokens"
REMOTE: Final = ("remote_", "do_remote_")
"""How the ``kv_transfer_params`` begin with which a router names another engine that has a request's blocks, or will."""


def attach(scheduler: Any, plugin: Plugin) -> list["TierLoads"]:
    """Attach to each offloading connector of a scheduler, and return what is attached.

    Raises:
        LookupError: a connector lacks the parts that are wrapped. Nothing has changed then.
    """
    parts = list(_offloading(getattr(scheduler, "connector", None)))
    for part in parts:
        if (reason := find_incompatibility(part)) is not None:
            raise LookupError(reason)
    if not parts:
        return []
    times = TimeByTokens()
    tiers = [TierLoads(f"cpu{number or ''}", part, scheduler, plugin, times) for number, part in enumerate(parts)]
    # From here on nothing fails.
    StepTimes(scheduler, plugin, times, tiers)
    for tier in tiers:
        tier.install()
    return tiers


def find_incompatibility(part: Any) -> str | None:
    """Return why a connector's scheduler cannot be wrapped; None if it can."""
    for name, expected in WRAPPED.items():
        method = getattr(part, name, None)
        if method is None or list(inspect.signature(method).parameters) != expected:
            return f"its offloading connector's {name}({', '.join(expected)}) is gone or takes other arguments"
    state = inspect.getmodule(type(part)).__dict__.get("RequestOffloadState")
    if CAP not in getattr(state, "__dataclass_fields__", ()) or not isinstance(getattr(part, "_req_status", None), dict):
        return f"its offloading connector has no {CAP}"
    return None


def _offloading(connector: Any) -> Iterator[Any]:
    """Yield the schedulers of the offloading connectors, also of those within a ``MultiConnector``."""
    for each in (connector, *getattr(connector, "_connectors", ())):
        part = getattr(each, "connector_scheduler", None)
        if type(each).__name__ == "OffloadingConnector" and part is not None:
            yield part


class StepTimes:
    """Measures an engine's prefill by its steps. Raises nothing into them.

    Args:
        times: of the steps with prompts, by their prompt tokens; is added to.
        tiers: :meth:`TierLoads.scheduled` is called after each step's schedule.
    """

    def __init__(self, scheduler: Any, plugin: Plugin, times: TimeByTokens, tiers: Sequence["TierLoads"]) -> None:
        self._times = times
        self._tiers = tiers
        self._plugin = plugin
        self._begun: dict[int, tuple[float, int]] = {}
        """When each step in flight was scheduled, and its prompt tokens, by the identity of its output."""
        self._ended_at = -math.inf
        self._stock_schedule = scheduler.schedule
        self._stock_update = scheduler.update_from_output
        scheduler.schedule = self.schedule
        scheduler.update_from_output = self.update_from_output

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """``Scheduler.schedule``."""
        now = self._plugin.now_or_latest()
        scheduled = self._stock_schedule(*args, **kwargs)
        try:
            self.begins(scheduled, now)
        except Exception as error:
            self._plugin.failed(error)
        for tier in self._tiers:
            tier.scheduled(scheduled)
        return scheduled

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """``Scheduler.update_from_output``."""
        try:
            self.ends(scheduler_output, self._plugin.now_or_latest())
        except Exception as error:
            self._plugin.failed(error)
        return self._stock_update(scheduler_output, *args, **kwargs)

    def begins(self, scheduled: Any, now: float) -> None:
        """Note the tokens of a step that begins."""
        self._begun.pop(id(scheduled), None)  # of a step whose output never came
        # A decoding request computes one token and the drafted ones.
        drafted = sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))
        tokens = scheduled.total_num_scheduled_tokens - len(scheduled.num_scheduled_tokens) - drafted
        if tokens > 0:
            if len(self._begun) >= MOST_STEPS:
                self._begun.clear()
            self._begun[id(scheduled)] = now, tokens

    def ends(self, scheduled: Any, now: float) -> None:
        """Learn from the seconds of a step that ends."""
        begun = self._begun.pop(id(scheduled), None)
        ended_at, self._ended_at = self._ended_at, now
        if begun is not None:
            at, tokens = begun
            seconds = now - max(at, ended_at)
            if 0.0 < seconds <= LONGEST_STEP_S:  # longer: the engine was paused
                self._times.add(tokens, seconds)


@dataclass(slots=True)
class _Asked:
    """A request that has not ended.

    Attributes:
        arrived: when it arrived.
        left: whether it is left to vLLM.
        most: tokens to load at most; infinite: all that the tier has; None: not decided.
        loads: whether what the latest look-up has found is loaded between steps.
    """

    arrived: float
    left: bool
    most: float | None = None
    loads: bool = False


class TierLoads:
    """Load or compute for one tier. All methods belong to the scheduler's thread.

    Args:
        name: of the tier.
        part: scheduler of its offloading connector, which has passed :func:`find_incompatibility`.
        times: of the engine's steps with prompts.

    Attributes:
        chooser: decides; None after a failure: vLLM loads all.
    """

    def __init__(self, name: str, part: Any, scheduler: Any, plugin: Plugin, times: TimeByTokens) -> None:
        self.name = name
        groups = part.config.kv_group_configs
        # Of a sliding window vLLM stores only what ends where prompts end, so a part of a prompt is no hit. A part that fits
        # into a step would be loaded within it.
        whole = any(group.sliding_window_size_in_chunks is not None for group in groups)
        whole |= bool(getattr(part.config, "sync_load_budget_bytes", 0))
        self.chooser: LoadOrCompute | None = LoadOrCompute(
            prefill_s=lambda: times.most_token_s or None if times.measured >= MEASURED_STEPS else None,
            clock=plugin.now_or_latest,
            parts=not whole,
            unit=math.lcm(*(group.tokens_per_chunk for group in groups)),
        )
        self._plugin = plugin
        self._scheduler = scheduler
        self._part = part
        self._states: dict[str, Any] = part._req_status
        self._asked: dict[str, _Asked] = {}
        self._starting: list[Any] = []
        """Requests that start in this step and load nothing between steps from this tier."""
        self._stock = {name: getattr(part, name) for name in WRAPPED}

    def install(self) -> None:
        """Replace the methods of the connector's scheduler."""
        for method in WRAPPED:
            setattr(self._part, method, getattr(self, method))

    @property
    def tracked(self) -> int:
        """Number of requests that are remembered."""
        return len(self._asked)

    def on_new_request(self, request: Any) -> None:
        """Note when a request arrives."""
        self._stock["on_new_request"](request)
        self._mine(self._arrives, request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int, *args: Any, **kwargs: Any) -> tuple[Any, bool]:
        """Look up what the tier has beyond the pool, and return how much of it is loaded."""
        look_up = self._stock["get_num_new_matched_tokens"]
        found, between_steps = look_up(request, num_computed_tokens, *args, **kwargs)
        most = self._mine(self._decides, request, num_computed_tokens, found, between_steps)
        if most is not None and most < found:
            state = self._states[request.request_id]
            try:
                setattr(state, CAP, int(most))
                found, between_steps = look_up(request, num_computed_tokens, *args, **kwargs)
            except Exception as error:
                self._give_up(error)
                setattr(state, CAP, None)
                return look_up(request, num_computed_tokens, *args, **kwargs)  # type: ignore[no-any-return]
            setattr(state, CAP, None)
        self._mine(self._looked_up, request, found, between_steps)
        return found, between_steps

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note that a request loads this much, or computes."""
        self._stock["update_state_after_alloc"](request, blocks, num_external_tokens)
        self._mine(self._starts, request, num_external_tokens)

    def scheduled(self, scheduled: Any) -> None:
        """Note what the requests compute that have started in a step."""
        if self._starting:
            self._mine(self._compute, scheduled)
            self._starting.clear()

    def update_connector_output(self, connector_output: Any) -> None:
        """Note which loads are done."""
        self._mine(self._loaded, connector_output)
        self._stock["update_connector_output"](connector_output)

    def request_finished(self, request: Any) -> Any:
        """Forget a request."""
        self._mine(self._ends, request)
        return self._stock["request_finished"](request)

    def _mine(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call what may fail."""
        if self.chooser is None:
            return None
        started = time.perf_counter()
        try:
            return function(self.chooser, *args)
        except Exception as error:
            self._give_up(error)
            return None
        finally:
            self._plugin.seconds += time.perf_counter() - started

    def _give_up(self, error: Exception) -> None:
        """Leave all requests to vLLM from now on."""
        self.chooser = None
        self._asked.clear()
        self._plugin.failed(error)

    def _arrives(self, _: LoadOrCompute, request: Any) -> None:
        asked = request.kv_transfer_params
        left = isinstance(asked, Mapping) and any(str(name).startswith(REMOTE) and asked[name] for name in asked)
        self._asked[request.request_id] = _Asked(self._plugin.now_or_latest(), left)

    def _decides(self, chooser: LoadOrCompute, request: Any, pool: int, found: int | None, between_steps: bool) -> float | None:
        """Return how much to load at most; None: vLLM's answer stays."""
        asked = self._asked.get(request.request_id)
        if asked is None or asked.left or found is None or (found and not between_steps):
            return None
        if self._plugin.lru_forced or getattr(self._states[request.request_id], CAP) is not None:
            return None
        if asked.most is None:
            waiting = max(len(self._scheduler.waiting) - 1, 0)
            tokens = chooser.choose(found, request.num_tokens - pool, waiting=waiting, arrived=asked.arrived, held=pool)
            asked.most = tokens if tokens < found else math.inf
        return asked.most

    def _looked_up(self, _: LoadOrCompute, request: Any, found: int | None, between_steps: bool) -> None:
        if (asked := self._asked.get(request.request_id)) is not None:
            asked.loads = bool(found) and between_steps

    def _starts(self, chooser: LoadOrCompute, request: Any, external: int) -> None:
        asked = self._asked.get(request.request_id)
        if asked is None:
            return
        asked.most = None
        if external and asked.loads:
            chooser.begin(request.request_id, external)
        else:
            self._starting.append(request)

    def _compute(self, chooser: LoadOrCompute, scheduled: Any) -> None:
        for request in self._starting:
            now = scheduled.num_scheduled_tokens.get(request.request_id)
            if now is not None:  # else another connector loads for it, and it starts again when that is done
                chooser.computes(max(request.num_tokens - (request.num_computed_tokens - now), 0))

    def _loaded(self, chooser: LoadOrCompute, output: Any) -> None:
        done = {name: tokens for name in output.finished_recving or () if (tokens := chooser.under_way(name))}
        if not done:
            return
        loads = getattr(getattr(output.kv_connector_worker_meta, "transfer_stats", None), "load", None)
        # Transfers that end together are reported in one sum, and each worker's is a transfer of its own.
        token_s = loads.time / len(loads.sizes) * len(done) / sum(done.values()) if loads is not None and loads.sizes else None
        for name, tokens in done.items():
            chooser.end(name, None if token_s is None else token_s * tokens)

    def _ends(self, chooser: LoadOrCompute, request: Any) -> None:
        self._asked.pop(request.request_id, None)
        chooser.drop(request.request_id)
