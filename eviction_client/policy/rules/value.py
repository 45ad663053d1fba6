"""The retention value, of the combined classes: with the sidecar's features (`value`) and without them (`own`)."""

from eviction_client.policy.classes import CELLS, cell_of, without_sidecar
from eviction_client.policy.queue.free_queue import Table, Tables
from eviction_client.policy.request import Features
from eviction_client.policy.rules.base import Learned, Rule, Steps, scaled


class Own(Rule):
    """`value` without the sidecar: classes that differ only in its features have one table, that of their counts together.

    So what the sidecar adds is `value` less `own`.
    """

    name = "own"
    source = "this project: what the sidecar adds is `value` less `own`"
    formula = "as `value`"
    divided = "those of `value` without the sidecar's features"
    classes = CELLS
    combines = True
    home = True

    @staticmethod
    def class_of(features: Features, log_odds: float) -> int:
        """Return the class of the cell: gap and new tokens."""
        del log_odds
        return cell_of(features)

    def tables(self, learned: Learned) -> Steps:
        """Return the tables of the cells."""
        yield
        return scaled(learned.cells)

    def table_of(self, features: Features, log_odds: float, tables: Tables, learned: Learned) -> Table:
        """Return the table of the class without the sidecar, or that of its cell."""
        return learned.own.get(without_sidecar(features)) or super().table_of(features, log_odds, tables, learned)


class Value(Own):
    """The retention value: uses per second of room, ``max over h of (F(a + h) - F(a)) / integral from a to a + h of (1 - F)``.

    F is the class's reuse curve (:mod:`eviction_client.policy.fit`), a the age; see :func:`lpc.model.curve.values`.
    """

    name = "value"
    source = "this project; Gittins index (1979)"
    formula = (
        "the retention value, in uses per second of room: `max over h of (F(a+h) - F(a)) / integral from a to a+h of (1 - F)`"
    )
    divided = "up to 2,048, by all features below"

    def table_of(self, features: Features, log_odds: float, tables: Tables, learned: Learned) -> Table:
        """Return the class's table, or the one without the sidecar."""
        return learned.sidecar.get(features) or super().table_of(features, log_odds, tables, learned)

    def like(self, learned: Learned) -> str | None:
        """Return `own` while no class has features of the sidecar."""
        return None if learned.sidecar else Own.name
