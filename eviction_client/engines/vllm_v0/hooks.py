"""What the plug-in hangs into a scheduler of vLLM's V0 engine.

- the GPU allocator's ``evictor`` becomes a :class:`LearnedEvictor`, and is one again after ``reset_prefix_cache``;
- ``block_manager.free(seq)`` becomes :meth:`Hooks.free`. Finish, abort and preemption by recompute pass there: the blocks that
  it adds to the evictor get what the request is worth;
- the scheduler's ``add_seq_group`` asks the predictor once V0 has taken the request, ``schedule`` does what is due first, and
  ``fork_seq`` says whose child a sequence is.

All of them are attributes of these very objects. What is freed otherwise (swapped out, copy on write) gets no credit. Blocks of
a preempted request get the highest key given so far: they go last among those with credit, where they lie under LRU, too.

Nothing here may raise into the scheduler: a hook that fails is counted and logged once, and the blocks get no credit.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from eviction_client.engines.vllm_v0.evictor import AVERAGE, FreeBlock, LearnedEvictor, Worth, named
from eviction_client.hints import NOTHING, Asked, Hints
from eviction_client.scorer import Scorer

LOOK_AHEAD: Final = 256
"""Blocks to be evicted next about which the store is asked."""
MOST_KNOWN: Final = 65_536
"""Sequences whose request is remembered; over it the oldest's blocks get no credit."""
COMPLETED: Final = frozenset(("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"))


@dataclass(slots=True)
class Group:
    """A request. ``worth`` and ``asked``: what its blocks get, and its hints ask for, once one of its sequences has ended."""

    request_id: str
    session: str | None
    hints: Hints
    worth: Worth | None = None
    asked: Asked = NOTHING


class Hooks:
    """What is attached to one scheduler. All methods belong to its thread.

    Args:
        adopt: put our evictor into the allocator; else (shadow mode) the engine's own order stays.

    Raises:
        Exception: the engine has no such parts. Then nothing was attached.

    Attributes:
        queue: our evictor; None in shadow mode.
        raised: blocks whose key was raised because another conversation holds them.
    """

    def __init__(self, scheduler: Any, scorer: Scorer, *, adopt: bool) -> None:
        self.scorer = scorer
        self.queue: LearnedEvictor | None = None
        self.raised = 0
        self._group_of: OrderedDict[int, Group] = OrderedDict()
        self._unanswered: dict[str, list[FreeBlock]] = {}
        self._manager = scheduler.block_manager
        self._allocator = gpu_allocator(self._manager)
        self._block_size: int = self._manager.block_size
        self._stock_add: Callable[..., None] = scheduler.add_seq_group
        self._stock_schedule: Callable[..., Any] = scheduler.schedule
        self._stock_fork: Callable[..., None] = scheduler.fork_seq
        self._stock_free: Callable[[Any], None] = self._manager.free
        self._stock_reset: Callable[..., bool] | None = getattr(self._allocator, "reset_prefix_cache", None)
        if adopt:
            if self._allocator.evictor.num_blocks:
                raise RuntimeError("its prefix cache is in use already")
            self._ties_by_id = hasattr(self._allocator.evictor, "priority_queue")
            self.queue = self._adopted()
            if self._stock_reset is not None:
                self._allocator.reset_prefix_cache = self.reset_prefix_cache
        self._manager.free = self.free
        scheduler.add_seq_group, scheduler.schedule, scheduler.fork_seq = self.add_seq_group, self.schedule, self.fork_seq

    def add_seq_group(self, seq_group: Any, *args: Any, **kwargs: Any) -> None:
        """``Scheduler.add_seq_group``, which also asks the predictor."""
        self._stock_add(seq_group, *args, **kwargs)
        started = time.perf_counter()
        try:
            sampling = seq_group.sampling_params
            arguments = getattr(sampling, "extra_args", None)
            session = arguments.get("session_id") if isinstance(arguments, dict) else None
            group = Group(seq_group.request_id, session if isinstance(session, str) else None, Hints.of(arguments))
            sequences = seq_group.get_seqs()
            for sequence in sequences:
                self._know(sequence.seq_id, group)
            if sampling is not None and (prompt := sequences[0].prompt_token_ids):
                lora = seq_group.lora_request
                self.scorer.admitted(
                    group.request_id, prompt, session=group.session, category="" if lora is None else lora.lora_name
                )
        except Exception as error:
            self.scorer.failed(error)
        self.scorer.seconds += time.perf_counter() - started

    def fork_seq(self, parent_seq: Any, child_seq: Any) -> None:
        """``Scheduler.fork_seq``: the child is of its parent's request."""
        self._stock_fork(parent_seq, child_seq)
        if (group := self._group_of.get(parent_seq.seq_id)) is not None:
            self._know(child_seq.seq_id, group)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """``Scheduler.schedule``, before which what is due is done."""
        self.step()
        return self._stock_schedule(*args, **kwargs)

    def step(self) -> None:
        """Do what is due before a step of the scheduler: follow the guard, lay credit that came late."""
        scorer, queue = self.scorer, self.queue
        if queue is not None:
            queue.trusting = scorer.trusting  # first: what fails below must not keep a rule in force
        try:
            for request_id, keys in scorer.late():
                blocks = self._unanswered.pop(str(request_id), ())
                if queue is not None and keys is not None:
                    queue.lay(blocks, keys.key - keys.t_last)
        except Exception as error:
            scorer.failed(error)

    def free(self, seq: Any) -> None:
        """``BlockSpaceManager.free``, whose blocks get what their request is worth."""
        worth, asked, request_id = self._worth_of(seq)
        queue = self.queue
        if queue is None:
            self._stock_free(seq)
            return
        before, queue.worth, queue.asked = queue.stamp, worth, asked
        try:
            self._stock_free(seq)
        finally:
            queue.worth, queue.asked = AVERAGE, NOTHING
        if request_id is not None and self.scorer.awaits(request_id):
            self._unanswered.setdefault(request_id, []).extend(queue.added_since(before))
        self.look_ahead()

    def reset_prefix_cache(self) -> bool:
        """``PrefixCachingBlockAllocator.reset_prefix_cache``, which makes itself a stock evictor."""
        assert self._stock_reset is not None
        done = self._stock_reset()
        if self._allocator.evictor is not self.queue:
            self.queue = self._adopted()
        return done

    def look_ahead(self) -> None:
        """Ask the store about the blocks to be evicted next; raise those of which it has answered that others hold them."""
        queue = self.queue
        if queue is None:
            return
        started = time.perf_counter()
        try:
            pooled = self.scorer.look_ahead(lambda: [named(block.content_hash) for block in queue.next_blocks(LOOK_AHEAD)])
            if pooled and queue.trusting:
                for block in queue.next_blocks(LOOK_AHEAD):
                    known = pooled.get(named(block.content_hash))
                    if known is not None and known > block.key + 1.0:
                        queue.raise_to(block, known)
                        self.raised += 1
        except Exception as error:
            self.scorer.failed(error)
        self.scorer.seconds += time.perf_counter() - started

    # None of these raises.

    def _worth_of(self, seq: Any) -> tuple[Worth, Asked, str | None]:
        """Return what a sequence's blocks are worth, its hints, and which request has ended with it; None where none has."""
        started = time.perf_counter()
        worth, asked, request_id = AVERAGE, NOTHING, None
        try:
            if not seq.is_finished():
                if self.queue is not None:
                    worth = Worth.of(0.0, max(self.queue.highest - self._now(), 0.0))
            elif (group := self._group_of.pop(seq.seq_id, None)) is not None:
                if group.worth is None:
                    group.worth, group.asked = self._ended(group, seq)
                worth, asked, request_id = group.worth, group.asked, group.request_id
        except Exception as error:
            self.scorer.failed(error)
        self.scorer.seconds += time.perf_counter() - started
        return worth, asked, request_id

    def _ended(self, group: Group, seq: Any) -> tuple[Worth, Asked]:
        table = self._manager.block_tables.get(seq.seq_id)
        computed = seq.data.get_num_computed_tokens() // self._block_size
        blocks = [] if table is None else table.blocks[:computed]
        hashes = [named(block.content_hash) for block in blocks if block.content_hash is not None]
        finished = self.scorer.finished(
            group.request_id,
            completed=seq.status.name in COMPLETED,
            blocks=hashes,
            prompt_blocks=min(len(hashes), len(seq.prompt_token_ids) // self._block_size),
            session=group.session,
            hints=group.hints,
        )
        # V0 itself gives the time of the last use.
        return Worth.of(0.0, finished.keys.key - finished.keys.t_last), finished.asked

    def _know(self, seq_id: int, group: Group) -> None:
        self._group_of[seq_id] = group
        if len(self._group_of) > MOST_KNOWN:
            self._group_of.popitem(last=False)

    def _adopted(self) -> LearnedEvictor:
        ours = LearnedEvictor(
            lifetime=self.scorer.lifetime, retained=self.scorer.retained, clock=self._now, ties_by_id=self._ties_by_id
        )
        self.scorer.retained.clear()
        ours.trusting = self.scorer.trusting
        self._allocator.evictor = ours
        return ours

    def _now(self) -> float:
        try:
            now = self.scorer.now()
            if now == now:
                return now
        except Exception as error:
            self.scorer.failed(error)
        return self.queue.highest if self.queue is not None else 0.0


def gpu_allocator(manager: Any) -> Any:
    """Return the allocator of the GPU's blocks. Raises AttributeError or StopIteration: there is none."""
    return next(a for device, a in manager.block_allocator._allocators.items() if device.name == "GPU")
