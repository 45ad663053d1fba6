"""A rule: a table by reuse class, the value at each age since the last use. The block of lowest value is evicted.

Only the order of values matters. Of equal values the older block goes first. A rule has classes of its own: a projection of a
span's features (:meth:`Rule.class_of`), and one table for each (:meth:`Rule.tables`). The combined classes have the features of
all rules (the log-odds in coarse steps), so each rule also has a table for each of these (:meth:`Rule.table_of`). So one queue
serves all, and a change of rule moves no block.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from eviction_client.policy.queue.free_queue import Table, Tables
from eviction_client.policy.request import Features
from eviction_client.policy.reuse_monitor import Counts
from lpc.model.curve import KNOTS

FALLING: Final = tuple(0.5 / (1.0 + age) for age in KNOTS)
"""Least recently used first among equals; below any difference of one."""
RESUMED_S: Final = 60.0
"""Time within which a preempted request resumes."""


class Learned(NamedTuple):
    """What a fit has learned from the traffic.

    Attributes:
        mean_gap_s: between the turns of a conversation.
        read_tokens: prompt tokens that requests have read in ``read_s``, seconds; 0: nothing is known.
        life_s: time that a block stays in the ghost cache of `wa`.
        newest: reuses and blocks at risk [INTERVALS] of blocks used once, by `wa.class_of`.
        cells: tables of the classes of gap and new tokens alone, by number.
        own: tables of the classes without the sidecar, by their features.
        sidecar: tables of the classes with its features, by these; empty without a sidecar.
    """

    mean_gap_s: float
    read_s: float
    read_tokens: float
    life_s: float
    newest: Mapping[int, tuple[Counts, Counts]]
    cells: Sequence[Table]
    own: Mapping[Features, Table]
    sidecar: Mapping[Features, Table]


Steps = Generator[None, None, Tables | None]
"""Tables that come in steps of well under a millisecond."""


class Rule(ABC):
    """A rule. It has no state.

    Attributes:
        name: the rule's name in settings and metrics.
        source: source of the formula.
        formula: value at age ``a`` seconds, for the reference; ``divided``: number of its classes, and by what.
        classes: number of its own classes.
        combines: whether it needs the combined classes. Its own ones are then those of the cells.
        exact: whether a queue that always has this rule has the rule's own classes, because the combined ones are coarser.
        by_claim: whether a class is a range of log-odds, and nothing else.
        choosable: whether the guard may put it in force; ``home``: whether it is one of the guard's home rules.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    formula: ClassVar[str]
    divided: ClassVar[str]
    classes: ClassVar[int]
    combines: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    by_claim: ClassVar[bool] = False
    choosable: ClassVar[bool] = True
    home: ClassVar[bool] = False

    @staticmethod
    @abstractmethod
    def class_of(features: Features, log_odds: float) -> int:
        """Return the class of blocks. ``log_odds``: of the continuation probability now."""

    def known(self, categories: int) -> int:
        """Return how many of its own classes blocks may have. ``categories``: how many have a number."""
        del categories
        return self.classes

    @abstractmethod
    def tables(self, learned: Learned) -> Steps:
        """Return the tables of its classes, in steps; None: least recently used first."""

    def table_of(self, features: Features, log_odds: float, tables: Tables, learned: Learned) -> Table:
        """Return the table of a combined class. ``tables``: of its own classes."""
        del learned
        return tables[self.class_of(features, log_odds)]

    def like(self, learned: Learned) -> str | None:
        """Return the name of the rule before it in the list that has the same tables; None: no rule."""
        del learned
        return None


def scaled(tables: Sequence[Table]) -> Tables:
    """Return tables with that of preempted requests' blocks: above all others for RESUMED_S, then as the lowest."""
    found = Tables(tables)
    highest = 2.0 * max(map(max, tables))
    lowest = map(min, *tables) if len(tables) > 1 else tables[0]
    found.soon = [
        highest + highest * falls if age < RESUMED_S else low for age, falls, low in zip(KNOTS, FALLING, lowest, strict=True)
    ]
    return found
