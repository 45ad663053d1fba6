"""A chunk of a tier, and the finished requests that have used it: whose key it has, by the law of pooling without names.

The law: :mod:`eviction_client.stores.base`. There conversations have names; here a request continues the conversation that has
the same session, or, where nobody said, whose last chunk lies in its own chain.
"""

from collections.abc import Collection, Hashable

from eviction_client.queue import Block
from eviction_client.score import Keys

Content = Hashable
"""What names a chunk in the tier's own code."""


class Use:
    """What finished requests have left of themselves in chunks, alike in all of these. It does not change.

    Attributes:
        session: of the request that used them last.
        last: the last chunk of that request's chain; None: the request that stored them still runs.
        keys: by the law of pooling. Where chunks lie while a request that uses them runs, these do not say.
        moved: an application has moved their last use.
        shared: more than one conversation has used them.
        latest: what the request that used them last leaves in chunks that nobody else has used; None: this is it.
    """

    __slots__ = ("credited", "keys", "last", "latest", "moved", "session", "shared")

    def __init__(
        self,
        session: str | None,
        last: Content | None,
        keys: Keys,
        *,
        moved: bool = False,
        shared: bool = False,
        latest: "Use | None" = None,
    ) -> None:
        self.session = session
        self.last = last
        self.keys = keys
        self.moved = moved
        self.credited = keys.key != keys.t_last
        self.shared = shared
        self.latest = latest

    def after(self, before: "Use", chain: Collection[Content]) -> "Use":
        """Return what this use leaves in chunks that have been used before. ``chain``: of its request."""
        if before.last is None or not (before.shared or not self._continues(before, chain)):
            return self
        keys = highest_of(before.keys, self.keys)
        return Use(self.session, self.last, keys, moved=self.moved or before.moved, shared=True, latest=self)

    def late(self, key: float, latest: "Use") -> "Use":
        """Return this use with the key of an answer that has come late to the request that used the chunks last."""
        keys = self.keys
        if not self.shared or keys.key < key:
            keys = keys._replace(key=key)
        return Use(self.session, self.last, keys, moved=self.moved, shared=self.shared, latest=latest)

    def _continues(self, before: "Use", chain: Collection[Content]) -> bool:
        """Return whether this is a later turn of the conversation that an earlier use belonged to."""
        if self.session is not None and before.session is not None:
            return self.session == before.session
        return before.last in chain


class Chunk(Block):
    """A chunk of the tier. ``content``: its name in the tier's own code."""

    __slots__ = ("content", "use")

    def __init__(self, number: int, content: Content, use: Use) -> None:
        # Not by its parent's: one is made for each chunk stored.
        self.block_id = number
        self.prev_free_block = self.next_free_block = None
        self.content = content
        self.use = use


def highest_of(one: Keys, other: Keys) -> Keys:
    """Return the later last use and the higher key."""
    if one.t_last <= other.t_last and one.key <= other.key:
        return other
    return Keys(max(one.t_last, other.t_last), max(one.key, other.key), one.retained or other.retained)
