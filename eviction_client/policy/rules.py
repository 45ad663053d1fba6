"""Rules: each is a table by reuse class, the value at each age since the last use. The block of lowest value is evicted.

Only the order of values matters. Of equal values the older block goes first. A rule has reuse classes of its own: a projection
of a span's features (:func:`class_of`), and one table for each (``.._tables``). The class of `value` combines the features that
the others need (of the log-odds in coarse steps), so their tables can also be read from it: one queue serves all, and a change
of rule moves no block.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Final

from eviction_client.policy.features import LEVELS, NEW_GROUPS, TURN_GROUPS, Features
from eviction_client.policy.free_queue import Table, Tables
from eviction_client.policy.reuse_monitor import Counts, add, nothing
from lpc.model import exponential
from lpc.model.curve import HORIZON_S, KNOTS

RULES: Final = ("lru", "ttl", "mq", "lpc", "wa", "own", "value")
COMBINED: Final = ("own", "value")
"""Rules with a table for each combined class. `own` is `value` without the sidecar: classes that differ only in its group and
probability have one table, that of their counts together."""

_FALLING: Final = tuple(0.5 / (1.0 + age) for age in KNOTS)
"""Least recently used first among equals; below any difference of one."""

TTL_S: Final = 300.0
PRIORITIES: Final = (35.0, 50.0, 65.0, 80.0, 100.0)
"""By turn group."""

LIFETIME_TOKENS: Final = 10_000 * 512
"""Prompt tokens after which a block falls one level."""
LIFETIME_S: Final = 150.0
"""The same in seconds, before requests have read any."""

LOG_ODDS_STEP: Final = 0.0625
"""A sixteenth of a mean gap between turns. With a quarter two of eight runs on ShareGPT differ from the paper's policy by 0.75
and 0.95 points."""
MOST_LOG_ODDS: Final = 8.0
BINS: Final = 1 + round(2 * MOST_LOG_ODDS / LOG_ODDS_STEP)


def class_of(rule: str, features: Features, log_odds: float) -> int:
    """Return the class of blocks under a rule that is not one of COMBINED. ``log_odds``: of the continuation probability."""
    if rule == "lru":
        return 0
    if rule == "ttl":
        return features.turn
    if rule == "mq":
        return features.level
    if rule == "lpc":
        return bin_of(log_odds)
    return features.new * TURN_GROUPS + features.turn


def classes_of(rule: str) -> int:
    """Return the number of classes of a rule that is not one of COMBINED."""
    return {"lru": 1, "ttl": TURN_GROUPS, "mq": LEVELS, "lpc": BINS, "wa": NEW_GROUPS * TURN_GROUPS}[rule]


def bin_of(log_odds: float | None) -> int:
    """Return the class of a continuation probability, by its log-odds; None: unknown, even odds."""
    place = 0.0 if log_odds is None else min(max(log_odds, -MOST_LOG_ODDS), MOST_LOG_ODDS)
    return round((place + MOST_LOG_ODDS) / LOG_ODDS_STEP)


def ttl_tables() -> Tables:
    """Return the tables of `ttl` by turn group: a priority for TTL_S, then that of a first turn as if just used.

    Priorities 0 to 100 with a duration are TensorRT-LLM's (KvCacheRetentionConfig, LRUEvictionPolicy; default 35). There the
    caller sets them. Here each turn adds 15, because it shows that the user stays.
    """
    after = [0.5 / (1.0 + max(age - TTL_S, 0.0)) for age in KNOTS]
    return _scaled(
        [
            [
                priority + falls if age < TTL_S else PRIORITIES[0] + late
                for age, falls, late in zip(KNOTS, _FALLING, after, strict=True)
            ]
            if turn
            else [priority + falls for falls in _FALLING]
            for turn, priority in enumerate(PRIORITIES)
        ]
    )


def mq_tables(lifetime_s: float) -> Tables:
    """Return the tables of `mq` by level.

    Multi-Queue (Zhou, Philbin and Li, USENIX ATC 2001): level = log2 of the uses, one queue each. A block that is not used
    for a lifetime moves to the end of the next lower queue. So the block with the lowest ``level - age / lifetime`` is evicted.
    The table holds this, plus a constant that makes it positive.

    Args:
        lifetime_s: time in which requests read LIFETIME_TOKENS.
    """
    floor = HORIZON_S / lifetime_s + 1.0
    return _scaled([[floor + level - age / lifetime_s for age in KNOTS] for level in range(LEVELS)])


def lpc_tables(mean_gap_s: float) -> Tables:
    """Return the tables of `lpc` by bin of log-odds.

    Learned Prefix Caching (NeurIPS 2025, 3.4.2): a block's probability p falls with its age a as ``p d / (p d + 1 - p)`` with
    ``d = exp(-a x scale)``, ``scale = 1 / mean gap between turns``. In log-odds this is ``logit(p) - a x scale``: the table,
    plus a constant that makes it positive.
    """
    floor = MOST_LOG_ODDS + HORIZON_S / mean_gap_s + 1.0
    falls = [age / mean_gap_s for age in KNOTS]
    # Mapped, not in a loop: the interpreter is held for as long.
    return _scaled([list(map((floor + number * LOG_ODDS_STEP - MOST_LOG_ODDS).__sub__, falls)) for number in range(BINS)])


def fitting_wa(counts: Mapping[int, tuple[Counts, Counts]]) -> Generator[None, None, list[tuple[float, float]]]:
    """Return the exponential law (q, tau in seconds) of each class of `wa`, in steps; see :func:`wa_tables`.

    Args:
        counts: reuses and blocks at risk [INTERVALS] by class. A class with few reuses has the law of all together.
    """
    overall = nothing()
    for pair in counts.values():
        add(overall, pair)
    known = exponential.fit_counts(*overall) if sum(overall[0]) >= 1.0 else (0.5, 100.0)
    yield
    laws = []
    for number in range(NEW_GROUPS * TURN_GROUPS):
        reuses, at_risk = counts.get(number, ((), ()))
        enough = sum(reuses) >= FEWEST_REUSES
        laws.append(exponential.fit_counts(reuses, at_risk) if enough else known)
        if enough:
            yield
    return laws


def wa_tables(laws: Sequence[tuple[float, float]], life_s: float) -> Tables:
    """Return the tables of `wa` by new-token group and turn group.

    *KVCache Cache in the Wild* (ATC 2025, 4.2): per class an exponential fit of the reuse time, ``q (1 - exp(-life / tau))
    exp(-a / tau)`` with the probability q of any reuse. The paper's categories are types of request, which an engine does not
    know; the number of new tokens stands for them. The table holds the logarithm, plus a constant that makes it positive.

    Args:
        laws: q and tau (seconds) by class.
        life_s: age at which blocks are evicted, on average.
    """
    logs = [(exponential.log_value(q, tau, life_s), tau) for q, tau in laws]
    floor = 1.0 + max(HORIZON_S / tau - log for log, tau in logs)
    return _scaled([[floor + log - age / tau for age in KNOTS] for log, tau in logs])


def _scaled(tables: list[Table]) -> Tables:
    found = Tables(tables)
    found.soon = soon(tables)
    return found


def soon(tables: Sequence[Table]) -> Table:
    """Return the table for blocks of preempted requests: above all others for RESUMED_S, then as the lowest."""
    highest = 2.0 * max(map(max, tables))
    lowest = map(min, *tables) if len(tables) > 1 else tables[0]
    return [
        highest + highest * falls if age < RESUMED_S else low for age, falls, low in zip(KNOTS, _FALLING, lowest, strict=True)
    ]


RESUMED_S: Final = 60.0
"""Time within which a preempted request resumes."""
FEWEST_REUSES: Final = 20.0
"""Reuses of a class for a fit of its own."""
