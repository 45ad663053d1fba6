"""Proof, at start, that our policy does in the CPU offload tier of this very vLLM what its LRU does, and then what it should.

One random course of lookups, stores that succeed, fail or stay in flight, loads, ends of requests and resets goes through two
small managers of vLLM's own class, one with its LRU, one with our policy. While nothing is known of reuse all that can be seen
must be equal, step by step. With values the lowest must leave first, and none that is protected, being loaded or being stored;
if there are not enough to evict, nothing may change.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from eviction_client.curve import KNOTS
from eviction_client.ended import Ended, Run
from eviction_client.engines.vllm_cpu import MODULE, POLICY
from eviction_client.engines.vllm_cpu.policy import LearnedCachePolicy, policies_made
from eviction_client.value_queue import Table
from eviction_client.value_tier import ValueTier

FEW: Final = 12
"""Chunks of the tiers of the random course: most stores evict, some find too little that may go."""
CHUNKS: Final = 24
OPERATIONS: Final = 240
STEP_S: Final = 0.4
WRONG_ORDER: Final = "chunks do not leave its offload tier in the order of their values"
LOWEST, LOW, MIDDLE, HIGH = range(4)
TABLES: Final[list[Table]] = [[value / (1.0 + age) for age in KNOTS] for value in (1e-9, 1e-6, 1e-3, 1.0)]


def why_not() -> str | None:
    """Return what our policy would not get right; None where it passed. Raises nothing."""
    try:
        return _order() or _value()
    except Exception as error:
        return f"the check of its offload tier failed: {type(error).__name__}: {error}"


class _Side:
    """A small tier, with vLLM's LRU or with our policy, and the requests that use it."""

    def __init__(self, chunks: int, *, learned: bool, tables: Sequence[Table] | None = None) -> None:
        self.now = 1e9
        self.tier: ValueTier | None = None
        self._contexts: dict[int, Any] = {}
        if not learned:
            self.manager = CPUOffloadingManager(num_chunks=chunks, cache_policy="lru")
            return
        with policies_made() as made:
            self.manager = CPUOffloadingManager(num_chunks=chunks, cache_policy=POLICY, cache_policy_module_path=MODULE)
        (policy,) = made
        assert isinstance(policy, LearnedCachePolicy)
        self.tier = ValueTier(
            "check",
            chunks,
            blocks=chunks,
            classes=len(TABLES),
            prompts_only=True,
            guarded=False,
            tables=lambda: tables,
            clock=lambda: self.now,
        )
        self.tier.step()
        policy.link(self.tier, _fail)

    def context(self, request: int, chain: Sequence[bytes]) -> Any:
        """Return a request's context; made, and its chain's places noted, when it is first asked for."""
        context = self._contexts.get(request)
        if context is None:
            context = self._contexts[request] = ReqContext(req_id=str(request))
            for place, key in enumerate(chain):
                context.set_offload_key_position(_key(key), 16 * (place + 1))
            self.manager.on_new_request(context)
        return context

    def end(self, request: int, chain: Sequence[bytes], *runs: Run) -> None:
        """End a request, as the scheduler's hook and then the connector do."""
        context = self.context(request, chain)
        if self.tier is not None:
            wanted = runs or (Run(len(chain), MIDDLE),)
            self.tier.ended(Ended(str(request), None, list(chain), len(chain), self.now, 0, wanted))  # type: ignore[arg-type]
        self.manager.on_request_finished(context)
        del self._contexts[request]


def _key(block: bytes) -> Any:
    return make_offload_key(block, 0)


def _fail(error: Exception) -> None:
    raise error


def _order() -> str | None:
    stock = list(_course(_Side(FEW, learned=False)))
    ours = _course(_Side(FEW, learned=True))
    for number, expected in enumerate(stock):
        if next(ours, None) != expected:
            return f"with our policy its offload tier is not as it was after operation {number} ({expected[0]}) of the check"
    return None


def _course(side: _Side) -> Iterator[tuple[str, object]]:
    """Run a random course through a tier, the same for all; yield after each operation its name and all that can be seen."""
    rng = random.Random(31)
    manager = side.manager
    chains: list[list[bytes]] = []
    running: dict[int, list[bytes]] = {}
    storing: list[tuple[int, list[bytes]]] = []
    loading: list[tuple[int, list[bytes]]] = []
    contents = 0
    contexts: dict[int, Any] = {}
    for number in range(OPERATIONS):
        side.now += STEP_S
        kinds = ["begin"] * 3 + (["store", "store", "end"] * 2 + ["load", "load"]) * bool(running)
        kinds += ["stored"] * 3 * bool(storing) + ["loaded"] * 2 * bool(loading) + ["reset"] * (number % 100 == 99)
        kind = "reset" if "reset" in kinds else rng.choice(kinds)
        seen: object = None
        if kind == "begin":
            earlier = rng.choice(chains)[: rng.randint(1, 8)] if chains and rng.random() < 0.6 else []
            fresh = rng.randint(1, 4)
            chain = [*earlier, *(n.to_bytes(32, "big") for n in range(contents, contents + fresh))]
            contents += fresh
            chains = [*chains[-8:], chain]
            running[number] = chain
            contexts[number] = side.context(number, chain)
        elif kind == "store":
            request = rng.choice(list(running))
            start = rng.randrange(len(running[request]))
            part = running[request][start : start + rng.randint(1, 4)]
            output = manager.prepare_store([_key(key) for key in part], contexts[request])
            if output is not None:
                storing.append((request, [key[:-4] for key in output.keys_to_store]))
                seen = output.keys_to_store, output.evicted_keys, list(getattr(output.store_spec, "block_ids"))  # noqa: B009
        elif kind == "load":
            request = rng.choice(list(running))
            ready = [key for key in running[request] if manager.lookup(_key(key), contexts[request]).name == "HIT"]
            manager.prepare_load([_key(key) for key in ready], contexts[request])
            loading.append((request, ready))
            seen = ready
        elif kind == "stored":
            request, keys = storing.pop(rng.randrange(len(storing)))
            manager.complete_store([_key(key) for key in keys], contexts[request], success=rng.random() < 0.9)
        elif kind == "loaded":
            request, keys = loading.pop(rng.randrange(len(loading)))
            manager.complete_load([_key(key) for key in keys], contexts[request])
        elif kind == "end":
            request = rng.choice(list(running))
            side.end(request, running.pop(request))
        else:
            manager.reset_cache()
            storing.clear()
            loading.clear()
            for request in list(running):
                side.end(request, running.pop(request))
        if number % 100 == 50:  # much more than may go
            seen = (
                seen,
                manager.prepare_store([_key(b"%32d" % place) for place in range(FEW + 1)], ReqContext(req_id="")) is None,
            )
        held = [manager.lookup(_key(key), ReqContext(req_id="")).name for chain in chains for key in chain]
        yield kind, (seen, held)


def _value() -> str | None:
    side = _Side(CHUNKS, learned=True, tables=TABLES)
    manager, tier = side.manager, side.tier
    assert tier is not None
    classes = {"high": HIGH, "low": LOW, "middle": MIDDLE, "busy": LOWEST, "high too": HIGH}
    chains = {name: [f"{name}{n}".encode().rjust(32) for n in range(4)] for name in classes}
    for number, (name, chain) in enumerate(chains.items()):
        side.now += 10 * STEP_S
        keys = [_key(key) for key in chain]
        context = side.context(number, chain)
        if manager.prepare_store(keys, context) is None:
            return "its offload tier takes nothing where it has room"
        manager.complete_store(keys, context)
        side.end(number, chain, Run(4, classes[name]))
    reader = side.context(90, chains["busy"])
    manager.prepare_load([_key(key) for key in chains["busy"]], reader)

    def stored(request: int, contents: Sequence[bytes]) -> list[bytes] | None:
        keys = [_key(key) for key in contents]
        output = manager.prepare_store(keys, side.context(request, contents))
        return None if output is None else [key[:-4] for key in output.evicted_keys]

    fresh = [f"fresh{n}".encode().rjust(32) for n in range(CHUNKS)]
    if stored(91, fresh[:4]) != []:
        return "its offload tier evicts where it has room"
    before = list(tier.order())
    if stored(92, fresh[4:]) is not None or list(tier.order()) != before:
        return "its offload tier changes where it cannot make room"
    # Three of the least, tail first, and the fourth is protected: it is offered itself.
    if stored(93, [chains["low"][3], *fresh[4:7]]) != chains["low"][2::-1]:
        return WRONG_ORDER
    side.end(93, [chains["low"][3]], Run(1, LOW))
    if stored(94, fresh[7:12]) != [chains["low"][3], *reversed(chains["middle"])]:
        return WRONG_ORDER
    manager.complete_load([_key(key) for key in chains["busy"]], reader)
    # The parts of one chain in classes of their own.
    side.end(90, chains["busy"], Run(1, HIGH), Run(4, LOWEST))
    if stored(95, fresh[12:15]) != chains["busy"][:0:-1]:
        return "chunks that were loaded do not leave its offload tier in the order of their values"
    return None
