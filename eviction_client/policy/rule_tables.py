"""The tables of all rules, for the classes of the queue and of the ghost caches, as the last fit made them."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from eviction_client.policy.classes import CELLS, MOST_CLASSES
from eviction_client.policy.ghosts import CHOSEN, Ghosts
from eviction_client.policy.queue.free_queue import Table, Tables
from eviction_client.policy.request import NOTHING_KNOWN, Features
from eviction_client.policy.reuse_monitor import PER_STEP
from eviction_client.policy.rules import AUTO, RULES
from eviction_client.policy.rules.base import Learned, Rule


class RuleTables:
    """Tables by rule. The lists are shared and grow: a class that appears between two fits gets the tables of its features.

    Args:
        rule: one of `eviction_client.policy.rules.RULES`, or AUTO: the guard chooses.

    Attributes:
        exact: the rule whose own classes the queue has; None: it has the combined ones.
        combining: rules whose ghost caches have the combined classes: also those that the guard puts in force with these.
        classes: number of the queue's classes; ``plain``: that of blocks of which nothing is known.
        of_queue: tables by rule and class of the queue; a rule that is missing is least recently used first.
    """

    def __init__(self, rule: str) -> None:
        self.exact = RULES[rule] if rule != AUTO and RULES[rule].exact else None
        self.combining = [
            each.name for each in RULES.values() if each.combines or (each.exact and each.choosable and each.name != rule)
        ]
        self.classes = MOST_CLASSES if self.exact is None else self.exact.classes
        self.plain = 0 if self.exact is None else self.exact.class_of(NOTHING_KNOWN, 0.0)
        self.of_queue: dict[str, Tables] = {}
        self._of_ghosts: Mapping[str, Sequence[Table] | None] = {}
        self._learned: Learned | None = None
        self._of_combined: Sequence[tuple[Rule, Tables, Tables]] = ()
        """Rules with the tables of their own classes, and of the combined ones."""

    @property
    def ghost_classes(self) -> dict[str, int]:
        """Number of classes in the ghost cache of each rule, and in that of the chosen one."""
        classes = {name: MOST_CLASSES if name in self.combining else rule.classes for name, rule in RULES.items()}
        return {**classes, CHOSEN: self.classes}

    def set_in(self, ghosts: Ghosts[Any]) -> None:
        """Set the tables of ghost caches to those of the last fit."""
        ghosts.set_tables(self._of_ghosts, self.of_queue)

    def add(self, number: int, key: Features, log_odds: float) -> None:
        """Give a new combined class the tables that it has without the sidecar, or those of its cell. In the queue's thread."""
        assert self._learned is not None  # `fitting` has run once
        for rule, tables, of_combined in self._of_combined:
            of_combined[number] = rule.table_of(key, log_odds, tables, self._learned)

    def fitting(
        self, learned: Learned, keys: Sequence[Features], log_odds_of: Callable[[int, Features], float]
    ) -> Generator[None, None, None]:
        """Make the tables of all rules those in use, in steps.

        Args:
            keys: features by combined class; may grow between the steps.
            log_odds_of: returns the log-odds of a combined class.
        """
        of_ghosts: dict[str, Tables | None] = {}
        of_queue: dict[str, Tables] = {}
        of_combined: list[tuple[Rule, Tables, Tables]] = []
        for name, rule in RULES.items():
            of_ghosts[name] = tables = yield from rule.tables(learned)
            like = rule.like(learned)
            if like is not None:
                of_queue[name] = of_queue[like]
            elif tables is not None and rule is self.exact:
                of_queue[name] = tables
            elif tables is not None:
                of_queue[name] = Tables([tables[0]] * MOST_CLASSES)
                of_queue[name].soon = tables.soon
                of_combined.append((rule, tables, of_queue[name]))
        for number, key in enumerate(keys):
            if not number % PER_STEP:
                yield
            log_odds = log_odds_of(number, key)
            for rule, tables, of_all in of_combined:
                of_all[number] = rule.table_of(key, log_odds, tables, learned)
        for rule, tables, of_all in of_combined:
            if rule.combines:
                of_all[:CELLS] = tables
        of_ghosts.update({name: of_queue[name] for name in self.combining})
        self._learned, self._of_combined, self.of_queue, self._of_ghosts = learned, of_combined, of_queue, of_ghosts
