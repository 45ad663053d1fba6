"""Hooks of the plug-in in a scheduler of vLLM's V0 engine.

- A :class:`LearnedEvictor` wraps the GPU allocator's ``evictor``, and again after ``reset_prefix_cache``.
- ``block_manager.free(seq)`` becomes :meth:`Hooks.free`, for finish, abort and preemption by recompute: the blocks that it adds
  to the evictor get the request's reuse classes.
- ``add_seq_group`` of the scheduler also requests a prediction. ``schedule`` calls :meth:`Hooks.step` first and
  :meth:`Hooks.started` last; until then the request's cached prefix is kept (:class:`eviction_client.keep.Keep`). ``fork_seq``
  assigns the child sequence to its parent's request.

The hooks are attributes of these objects, not of their classes. Blocks freed otherwise (swapped out, copy on write) enter the
class of blocks used once, as just used. By value, blocks of a preempted request go last, and sink if it does not resume; under
LRU the stock evictor orders them.

No hook raises into the scheduler: a failure is counted and logged once, and the blocks enter the class of blocks used once.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from eviction_client.ended import Ended
from eviction_client.engines.vllm_v0.evictor import LearnedEvictor, named
from eviction_client.engines.vllm_v0.keep import CachedPrefix, Waiting
from eviction_client.hints import Hints
from eviction_client.keep import Keep
from eviction_client.plugin import Plugin
from eviction_client.stores.base import BlockHash

MOST_KNOWN: Final = 65_536
"""Sequences whose request is remembered. Beyond it the blocks of the oldest enter the class of blocks used once."""
COMPLETED: Final = frozenset(("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"))


@dataclass(slots=True)
class Group:
    """A request. ``ended``: set when one of its sequences has finished."""

    request_id: str
    session: str | None
    hints: Hints
    ended: Ended | None = None


class Hooks:
    """The hooks in one scheduler. All methods are for its thread.

    Args:
        adopt: replace the allocator's evictor; false in a dry run.
        named_alike: `names.py` computes the allocator's content hashes; if not, no blocks are kept for waiting requests.

    Raises:
        Exception: the engine lacks a required attribute. Nothing was attached.

    Attributes:
        evictor: our evictor; None in a dry run.
        keep: the waiting requests.
    """

    def __init__(self, scheduler: Any, plugin: Plugin, *, adopt: bool, named_alike: bool = True) -> None:
        self.plugin = plugin
        self.evictor: LearnedEvictor | None = None
        self._group_of: OrderedDict[int, Group] = OrderedDict()
        self._manager = scheduler.block_manager
        self._allocator = gpu_allocator(self._manager)
        self._block_size: int = self._manager.block_size
        self._blocks: int = self._allocator.get_num_total_blocks()
        self._stock_add: Callable[..., None] = scheduler.add_seq_group
        self._stock_schedule: Callable[..., Any] = scheduler.schedule
        self._stock_fork: Callable[..., None] = scheduler.fork_seq
        self._stock_free: Callable[[Any], None] = self._manager.free
        self._stock_reset: Callable[..., bool] | None = getattr(self._allocator, "reset_prefix_cache", None)
        if adopt:
            if self._allocator.evictor.num_blocks:
                raise RuntimeError("its prefix cache is already in use")
            self._adopt()
            if self._stock_reset is not None:
                self._allocator.reset_prefix_cache = self.reset_prefix_cache
        prefix = CachedPrefix(self._allocator, self._block_size, lambda: self.evictor, self._hashes)
        self.keep: Keep[Waiting] = Keep(plugin, prefix, enabled=named_alike and plugin.settings.keep_waiting)
        self._manager.free = self.free
        scheduler.add_seq_group, scheduler.schedule, scheduler.fork_seq = self.add_seq_group, self.schedule, self.fork_seq

    def add_seq_group(self, seq_group: Any, *args: Any, **kwargs: Any) -> None:
        """``Scheduler.add_seq_group``, which also requests a prediction."""
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
            prompt = sequences[0].prompt_token_ids
            if prompt:
                self.keep.join(group.request_id, Waiting(sequences[0]))
            if sampling is not None and prompt:
                lora = seq_group.lora_request
                self.plugin.admitted(
                    group.request_id, prompt, session=group.session, category="" if lora is None else lora.lora_name
                )
        except Exception as error:
            self.plugin.failed(error)
        self.plugin.seconds += time.perf_counter() - started

    def fork_seq(self, parent_seq: Any, child_seq: Any) -> None:
        """``Scheduler.fork_seq``, which also assigns the child to its parent's request."""
        self._stock_fork(parent_seq, child_seq)
        if (group := self._group_of.get(parent_seq.seq_id)) is not None:
            self._know(child_seq.seq_id, group)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """``Scheduler.schedule``, between :meth:`step` and :meth:`started`."""
        self.step()
        scheduled = self._stock_schedule(*args, **kwargs)
        self.started(scheduled)
        return scheduled

    def step(self) -> None:
        """Do the work due before a step of the scheduler: follow the guard and the curves, end retentions, renew values."""
        plugin, evictor = self.plugin, self.evictor
        started = time.perf_counter()
        if evictor is not None:
            plugin.follow(evictor.queue)  # first: a failure below must not delay a change of the rule
        try:
            if evictor is not None:
                evictor.queue.step()
            self.keep.before_step()
        except Exception as error:
            plugin.failed(error)
        plugin.seconds += time.perf_counter() - started

    def started(self, scheduled: Any) -> None:
        """Record the waiting requests that a step has started. ``scheduled``: the result of ``schedule``."""
        if not self.keep.waiting:
            return
        started = time.perf_counter()
        try:
            metadata, outputs, *_ = scheduled
            for group in outputs.ignored_seq_groups:
                self.keep.leave(group.request_id)
            self.keep.started(
                (each.seq_group.request_id, len(getattr(told, "computed_block_nums", None) or ()) * self._block_size)
                for each, told in zip(outputs.scheduled_seq_groups, metadata, strict=False)
            )
        except Exception as error:
            self.plugin.failed(error)
        self.plugin.seconds += time.perf_counter() - started

    def free(self, seq: Any) -> None:
        """``BlockSpaceManager.free``, which also gives the blocks their request's classes."""
        ended = self._ended(seq)
        if self.evictor is None:
            self._stock_free(seq)
        else:
            self.evictor.placing(ended, self._stock_free, seq)

    def reset_prefix_cache(self) -> bool:
        """``PrefixCachingBlockAllocator.reset_prefix_cache``, which creates a new stock evictor."""
        assert self._stock_reset is not None
        done = self._stock_reset()
        if self.evictor is not self._allocator.evictor:
            self._adopt()
        return done

    # None of these raises.

    def _ended(self, seq: Any) -> Ended | None:
        """Return the finished request of a freed sequence; None if the request continues later."""
        started = time.perf_counter()
        ended: Ended | None = None
        try:
            if seq.is_finished():
                group = self._group_of.pop(seq.seq_id, None)
                if group is None:
                    ended = _UNKNOWN
                else:
                    if group.ended is None:
                        group.ended = _UNKNOWN  # if the next line raises
                        group.ended = self._finished(group, seq)
                    ended = group.ended
        except Exception as error:
            self.plugin.failed(error)
            ended = _UNKNOWN
        self.plugin.seconds += time.perf_counter() - started
        return ended

    def _finished(self, group: Group, seq: Any) -> Ended:
        self.keep.leave(group.request_id)
        self.plugin.in_use(self._blocks - self._allocator.get_num_free_blocks())
        hashes = self._hashes(seq, seq.data.get_num_computed_tokens() // self._block_size)
        return self.plugin.finished(
            group.request_id,
            completed=seq.status.name in COMPLETED,
            blocks=hashes,
            prompt_blocks=min(len(hashes), len(seq.prompt_token_ids) // self._block_size),
            reply_end=_reply_end(seq),
            session=group.session,
            hints=group.hints,
            token_ids=seq.prompt_token_ids,
        )

    def _hashes(self, seq: Any, blocks: int) -> list[BlockHash]:
        """Return the hashes of the first full blocks of a sequence."""
        table = self._manager.block_tables.get(seq.seq_id)
        found = [] if table is None else table.blocks[:blocks]
        return [named(block.content_hash) for block in found if block.content_hash is not None]

    def _know(self, seq_id: int, group: Group) -> None:
        self._group_of[seq_id] = group
        if len(self._group_of) > MOST_KNOWN:
            _, forgotten = self._group_of.popitem(last=False)
            self.keep.leave(forgotten.request_id)

    def _adopt(self) -> None:
        self.evictor = LearnedEvictor(
            self._allocator.evictor,
            self.plugin.classes,
            block_size=self._block_size,
            retained=self.plugin.retained,
            clock=self.plugin.now_or_latest,
        )
        self.plugin.retained.clear()
        self.plugin.follow(self.evictor.queue)
        self._allocator.evictor = self.evictor


_UNKNOWN: Final = Ended(None, None, (), 0, 0.0, 0, ())


def _reply_end(seq: Any) -> int | None:
    """Return the last token before the stop token that ended the reply; None if the reply ended otherwise."""
    if seq.status.name != "FINISHED_STOPPED" or seq.get_output_len() < 2:
        return None
    return int(seq.get_output_token_ids()[-2])


def gpu_allocator(manager: Any) -> Any:
    """Return the allocator of the GPU's blocks. Raises AttributeError or StopIteration without one."""
    return next(a for device, a in manager.block_allocator._allocators.items() if device.name == "GPU")
