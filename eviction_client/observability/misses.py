"""Why prompt tokens were not cached, counted block by block from hashes and positions.

Each token of a prompt has one source (`SOURCES`). A block that an earlier request used and that the engine did not find was
evicted, unless the cache had it and could not use it. An unknown block is changed if the same conversation had another block at
this position, or if an earlier prompt had the same text behind another prefix
(:mod:`eviction_client.observability.repeated_text`); else it is new. The history is bounded, so blocks that were last used long
ago count as new.

Only the background calls the methods (:mod:`eviction_client.learner`); any thread may read the counters.
"""

import math
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from eviction_client.block_hash import BlockHash
from eviction_client.observability.lru_gain import ENGINE, LRU, sampled_depths
from eviction_client.observability.part_blocks import LEAST_UNIT, PartBlocks
from eviction_client.observability.repeated_text import CHANGES, RepeatedText
from eviction_client.observability.sizes import CacheSizes
from eviction_client.policy.ghosts import GhostCache
from eviction_client.policy.request import GAPS, TrackedRequest, UnderLru
from eviction_client.policy.rules import RULES
from eviction_client.schedule.prefill import RepeatedPrefill
from eviction_client.tenants import MOST_TENANTS, OTHERS

SOURCES: Final = (
    "cached",
    "evicted",
    "reset",
    "other_layers",
    "part_block",
    "not_read",
    "new",
    "changed",
    "reply_changed",
    "other_salt",
    "other_engine",
    "embeddings",
    "short",
)
"""Where prompt tokens come from: the cache, or why not.

- ``evicted``: an earlier request used the block, and the cache no longer had it.
- ``reset``: an earlier request used the block, and the engine has emptied its cache since.
- ``other_layers``: some layers had it in the cache, and others did not: the state of recurrent layers, or a sliding window.
- ``part_block``: an earlier prompt begins with the same tokens, but hits end where a whole block ends, or several.
- ``not_read``: an earlier request used the block, and this one may not read the cache: prompt log-probabilities, pooling.
- ``new``: no request has used the block before.
- ``changed``: new, and the conversation's previous prompt differed at this position, or an earlier prompt had the same text
  behind another prefix: a time stamp, another order of tools, an edited history.
- ``reply_changed``: as ``changed``, within the last reply: without its reasoning, for example.
- ``other_salt``: the first block was used under another cache salt, adapter or media.
- ``other_engine``: another engine of the fleet has used the block recently, according to the store of shared blocks.
- ``embeddings``: as ``new``, of a prompt that came as embeddings, whose text is unknown here.
- ``short``: the incomplete last block of a prompt, or its last full block, because engines compute at least one token.
"""
UNUSED: Final = (*(f"{bound:g}" for bound in GAPS), "+Inf")
"""Upper bounds of the time since the last use of evicted blocks, seconds."""
CHANGED_FROM: Final = (0, 1024, 8192)
"""Lower bounds of the tokens before a change."""
MOST_SESSIONS: Final = 50_000
MOST_FIRST_BLOCKS: Final = 10_000
_UNKNOWN: Final = 0


class _Chain(NamedTuple):
    """The last chain of a conversation: number of blocks of the prompt, and with the reply."""

    prompt: int
    blocks: int


class HitUnit(NamedTuple):
    """Where an engine's hits end.

    Attributes:
        tokens: the blocks of all layers end together at its multiples, where hits end unless the engine hits parts of blocks.
        dropped: tokens at the end of a match that are not hit: speculative decoding by a draft model in vLLM.
        parts: tokens of the parts of blocks that the engine can hit; 0: none.
        lookahead: tokens after a block that its hash covers; the same.
        beyond: the dropped tokens may be the prompt's last ones, which are always computed.
        replayed: tokens at the end of a hit that are computed again. A hit that is not longer than this does not count.
    """

    tokens: int
    dropped: int = 0
    parts: int = 0
    lookahead: int = 0
    beyond: bool = False
    replayed: int = 0

    @property
    def needed(self) -> int:
        """Tokens that a prompt must have in common with an earlier one for a hit."""
        unit = self.parts or self.tokens
        return (self.replayed // unit + 1) * unit + self.dropped + self.lookahead

    def usable(self, known: int, prompt: int) -> int:
        """Return the tokens that a prompt hits if a cache has all units of its first ``known`` tokens, and no parts.

        Args:
            known: tokens of the blocks whose hashes are known, from the prompt's start.
            prompt: tokens of the prompt; the last one is always computed.
        """
        unit, most = self.tokens, max(prompt - 1, 0)
        proven = (known if self.beyond else min(known, most)) - self.dropped
        hit = min(max(proven, 0) // unit, most // unit) * unit
        return hit - self.replayed if hit > self.replayed else 0


class Tenant(NamedTuple):
    """Counters of one cache salt.

    Attributes:
        tokens: prompt tokens by source.
        sampled: blocks of prompts: ``asked``, and the hits of the ghost cache of each rule.
    """

    tokens: Counter[str]
    sampled: Counter[str]


class Misses:
    """Counts the prompt tokens of one engine by source.

    Args:
        capacity: blocks of the engine's cache.
        block_tokens: tokens of a block.
        every: one block in this many is sampled.
        hits: where the engine's hits end; None: at each block.

    Attributes:
        tokens: prompt tokens by source.
        latest: those of the last finished request; empty: it was not counted.
        hits: where the engine's hits end.
        unused: evicted tokens by the time since their last use; see `UNUSED`.
        changed: tokens of ``changed`` by how the prompt was changed (`CHANGES`), and by position; see `CHANGED_FROM`.
        followed: sampled evicted blocks: ``all``, and those that a cache under each rule would have had.
        reset_at: time at which the engine last emptied its cache, seconds on the clock of uses.
        hit_by_one: tokens that only the ENGINE hit, and that only LRU would have hit in its place.
        sizes: what LRU caches of other sizes would miss.
        tenants: counts by digest of the cache salt, at most MOST_TENANTS and OTHERS.
        repeated_prefill: share of the lately computed prompt tokens that the cache had before; any thread may read it.
    """

    def __init__(self, capacity: int, block_tokens: int, *, every: int, hits: HitUnit | None = None) -> None:
        self.tokens = dict.fromkeys(SOURCES, 0)
        self.latest: Mapping[str, int] = {}
        self.unused = dict.fromkeys(UNUSED, 0)
        self.changed = {(change, str(bound)): 0 for change in CHANGES for bound in CHANGED_FROM}
        self.followed = dict.fromkeys(("all", *RULES), 0)
        self.hit_by_one = {ENGINE: 0, LRU: 0}
        self.sizes = CacheSizes(capacity, every=every)
        self.tenants: dict[str, Tenant] = {}
        self.repeated_prefill = RepeatedPrefill(capacity * block_tokens)
        self.block_tokens = block_tokens
        self.hits = hits or HitUnit(block_tokens)
        remembers = self.hits.tokens >= LEAST_UNIT or self.hits.lookahead > 0
        self._parts = PartBlocks(self.hits.tokens, block_tokens, self.hits.lookahead) if remembers else None
        self._every = every
        self.reset_at = -math.inf
        self._sessions: OrderedDict[str, _Chain] = OrderedDict()
        self._texts = RepeatedText(block_tokens)
        self._first: OrderedDict[int, BlockHash] = OrderedDict()
        """The last first block by its tokens."""

    def reset(self, at: float) -> None:
        """Note that the engine has emptied its cache, seconds on the clock of uses."""
        self.reset_at = at
        self.sizes.clear()

    def finished(
        self,
        request: TrackedRequest[BlockHash],
        *,
        ghosts: Mapping[str, GhostCache[BlockHash]],
        elsewhere: Mapping[BlockHash, float],
        in_use: float,
    ) -> None:
        """Count the prompt of a finished request, as the background found it when the request started.

        Args:
            ghosts: the ghost caches, before they use the request.
            elsewhere: blocks that other conversations of the fleet hold.
            in_use: blocks that requests hold, on average.
        """
        prompt, cached = request.blocks[: request.prompt_blocks], request.cached
        self.latest = {}
        if request.conversation is not None and cached is not None and request.prompt_tokens:
            cached = min(cached, request.prompt_tokens)
            evicted = self._count(request, prompt, cached, ghosts, elsewhere)
            if request.under_lru is not None:
                self._compare(request.under_lru, prompt, request.prompt_tokens, cached, evicted)
        self.sizes.observe(request.blocks, request.prompt_blocks, in_use)
        self._remember(request, prompt)

    def judge(self, tenant: str, asked: int, hits: Mapping[str, int]) -> None:
        """Count the ghost caches' hits by tenant, which shows tenants that lose by the rule.

        Args:
            asked: sampled blocks of a prompt; ``hits``: those that the cache of each rule hit.
        """
        if tenant:
            self._tenant(tenant).sampled.update({"asked": asked, **hits})

    def _count(
        self,
        request: TrackedRequest[BlockHash],
        prompt: Sequence[BlockHash],
        cached: int,
        ghosts: Mapping[str, GhostCache[BlockHash]],
        elsewhere: Mapping[BlockHash, float],
    ) -> tuple[int, int]:
        """Count a prompt's tokens by source; return the first of the evicted tokens and the one behind the last."""
        size, unit = self.block_tokens, self.hits.tokens
        # The last token of a prompt is always computed, and with it its unit.
        most_blocks = (request.prompt_tokens - 1) // size * size
        most = min(most_blocks, len(prompt) * size) // unit * unit
        usable, repeated, unknown = self._repeated_from_start(request, prompt)
        counts = Counter(cached=cached)
        done = evicted_from = evicted_to = cached
        for piece in request.gap_spans:
            end, gap, use = min(piece.end * size, most), piece.features.gap, piece.use
            if gap != _UNKNOWN and done < end:
                known = min(end, max(usable, done))
                if request.reads_cache:
                    have = min(max(request.some_layers, done), known)
                    counts["other_layers"] += have - done
                    if known > have and use is not None and use.at <= self.reset_at:
                        counts["reset"] += known - have
                    elif known > have:
                        evicted_from = have if evicted_to == cached else evicted_from
                        evicted_to = known
                        counts["evicted"] += known - have
                        self.unused[UNUSED[gap - 1]] += known - have
                else:
                    counts["not_read"] += known - done
                done = known
            if done < (part := min(end, repeated)):
                counts["part_block"] += part - done
                done = part
            if done < end:
                source, tokens = self._source(request, prompt, done // size, elsewhere), end - done
                if source in ("new", "changed"):
                    depth = unknown if done == repeated else done // size
                    source, same = self._repeated(request, prompt, depth, done, tokens, source)
                    if source == "changed" and same < tokens:
                        counts["new"] += tokens - same
                        done += tokens - same
                        tokens = same
                counts[source] += tokens
                done += tokens
        # Of small units parts are not remembered: no token of the last block, which is computed, is one.
        last = request.prompt_tokens - 1 if unit >= LEAST_UNIT else most_blocks
        part = max(min(repeated, last), done)
        counts["part_block"] += part - done
        counts["short"] += request.prompt_tokens - part
        self.latest = counts
        for source, tokens in counts.items():
            self.tokens[source] += tokens
        self.repeated_prefill.note(request.prompt_tokens - cached, counts["evicted"])
        if request.tenant:
            self._tenant(request.tenant).tokens.update(counts)
        if evicted_to > evicted_from:
            self._follow(prompt, evicted_from // size, evicted_to // size, ghosts)
        return evicted_from, evicted_to

    def _compare(
        self, under_lru: UnderLru, prompt: Sequence[BlockHash], prompt_tokens: int, cached: int, evicted: tuple[int, int]
    ) -> None:
        """Count what only the engine hit, and what only LRU would have hit.

        Args:
            evicted: the first of the evicted tokens, and the one behind the last.
        """
        size, (start, end) = self.block_tokens, evicted
        held = start // size if end > start else max(under_lru.known, cached // size)
        by_lru = under_lru.depth(held)
        if by_lru == held:
            return
        hit = end if by_lru >= under_lru.known else self.hits.usable(by_lru * size, prompt_tokens)
        depths, _ = sampled_depths(prompt, self._every)
        for who, first, last in ((ENGINE, hit, cached), (LRU, start, min(hit, end))):
            blocks = bisect_left(depths, last // size) - bisect_left(depths, first // size)
            self.hit_by_one[who] += max(blocks, 0) * self._every * size

    def _repeated_from_start(self, request: TrackedRequest[BlockHash], prompt: Sequence[BlockHash]) -> tuple[int, int, int]:
        """Return the tokens from the start that earlier requests had: those that can be hit, and all; and the unknown block.

        The second is 0 if the engine hits each block, for what it does not hit then is less than a block.
        """
        unit, size = self.hits.tokens, self.block_tokens
        blocks = max((piece.end for piece in request.gap_spans if piece.features.gap != _UNKNOWN), default=0)
        usable = self.hits.usable(blocks * size, request.prompt_tokens)
        if self._parts is not None:
            start = blocks * size // unit * unit
            found = self._parts.find(request.token_ids, prompt, start, blocks * size, request.tenant)
            return usable, max(blocks * size, start + found), blocks
        limited = self.hits.dropped or self.hits.replayed or unit > size
        return usable, blocks * size if limited else 0, blocks

    def _source(
        self, request: TrackedRequest[BlockHash], prompt: Sequence[BlockHash], depth: int, elsewhere: Mapping[BlockHash, float]
    ) -> str:
        """Return why a block is unknown."""
        if prompt[depth] in elsewhere:
            return "other_engine"
        if not request.token_ids:
            return "embeddings"
        chain = self._sessions.get(request.session) if request.session else None
        if chain is not None and depth < chain.blocks:
            return "changed" if depth < chain.prompt else "reply_changed"
        if depth == 0 and self._first.get(self._opening(request), prompt[0]) != prompt[0]:
            return "other_salt"
        return "new"

    def _repeated(
        self, request: TrackedRequest[BlockHash], prompt: Sequence[BlockHash], depth: int, done: int, tokens: int, source: str
    ) -> tuple[str, int]:
        """Return the source of unknown tokens from a position on, and how many of them were changed. ``depth``: first unknown.

        Of a conversation with a session all up to the length of its last prompt and reply are, because these had others there.
        """
        in_history = source == "changed"
        start = done // self.block_tokens * self.block_tokens
        found = self._texts.find(request.token_ids, prompt, depth, in_history=in_history, start=start)
        if found is None and not in_history:
            return "new", 0
        if in_history:
            known = self._sessions[request.session or ""].blocks * self.block_tokens - done
        else:
            known = found.tokens if found is not None else 0
        changed = min(known, tokens)
        change = "edited" if found is None else found.change
        self.changed[change, str(max(bound for bound in CHANGED_FROM if bound <= done))] += changed
        return "changed", changed

    def _follow(self, prompt: Sequence[BlockHash], start: int, end: int, ghosts: Mapping[str, GhostCache[BlockHash]]) -> None:
        """Count which caches would have had the blocks in [start, end)."""
        depths, blocks = sampled_depths(prompt, self._every)
        before = bisect_left(depths, start)
        within = bisect_left(depths, end) - before
        self.followed["all"] += within
        for name, cache in ghosts.items():
            self.followed[name] += min(max(cache.hits(blocks) - before, 0), within)

    def _remember(self, request: TrackedRequest[BlockHash], prompt: Sequence[BlockHash]) -> None:
        if request.token_ids:
            self._texts.add(request.token_ids, request.blocks, request.old)
        if self._parts is not None:
            start = request.old * self.block_tokens // self.hits.tokens * self.hits.tokens
            self._parts.add(request.token_ids, request.blocks, start, request.tenant)
        if request.session:
            self._sessions.pop(request.session, None)
            self._sessions[request.session] = _Chain(request.prompt_blocks, len(request.blocks))
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        if prompt and request.token_ids:
            self._first[self._opening(request)] = prompt[0]
            if len(self._first) > MOST_FIRST_BLOCKS:
                self._first.popitem(last=False)

    def _opening(self, request: TrackedRequest[BlockHash]) -> int:
        """Return a hash of the tokens that the first block's hash covers."""
        return hash(tuple(request.token_ids[: self.block_tokens + self.hits.lookahead]))

    def _tenant(self, name: str) -> Tenant:
        if name not in self.tenants and len(self.tenants) >= MOST_TENANTS:
            name = OTHERS
        return self.tenants.setdefault(name, Tenant(Counter(dict.fromkeys(SOURCES, 0)), Counter()))
