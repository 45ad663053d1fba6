"""From the features of a request's blocks to their reuse classes."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

from eviction_client.policy.classes import IDLE_S, Classes
from eviction_client.policy.continuation import Continuation
from eviction_client.policy.request import (
    CATEGORIES,
    REPLY_ENDS,
    TENANTS,
    Features,
    Span,
    Spans,
    TrackedRequest,
    new_group,
    odds_group,
    span_of,
)
from eviction_client.policy.rule_tables import RuleTables
from eviction_client.policy.rules import RULES
from eviction_client.policy.rules.base import Rule

COUNTED: Final = 100
"""Requests per count."""
SHARE: Final = 0.1
"""Share of these requests that must have the same value for a number of its own."""


class Frequent:
    """Numbers the frequent values of a feature, without configuration: ends of replies, tenants, and categories.

    A tool call ends with its closing tag and returns in seconds, a user returns after reading. Tenants run different
    applications.
    The frequent values are numbered from 1; all others are 0. A value without a request for IDLE_S gives its number back.

    Args:
        numbers: how many numbers there are, 0 included.
    """

    def __init__(self, numbers: int) -> None:
        self._free = list(range(numbers - 1, 0, -1))
        self._numbers: dict[Hashable, int] = {}
        self._used: dict[Hashable, float] = {}
        self._counts: Counter[Hashable] = Counter()

    @property
    def count(self) -> int:
        """How many values have a number."""
        return len(self._numbers)

    def number(self, value: Hashable, now: float) -> int:
        """Return the number of a value, and count it.

        Args:
            value: None if unknown.
            now: seconds.
        """
        if value is None:
            return 0
        known = self._numbers.get(value)
        if known is not None:
            self._used[value] = now
            return known
        self._counts[value] += 1
        if self._counts.total() >= COUNTED:
            self._count(now)
        return 0

    def _count(self, now: float) -> None:
        most, count = self._counts.most_common(1)[0]
        self._counts.clear()
        if not self._free:
            for value in [value for value, used in self._used.items() if now - used > IDLE_S]:
                del self._used[value]
                self._free.append(self._numbers.pop(value))
        if self._free and count >= SHARE * COUNTED:
            self._numbers[most] = self._free.pop()
            self._used[most] = now


class Classifier:
    """Makes a class of the features of each part of a request's blocks.

    Args:
        tables: the rules' tables; a new class gets its tables at once.
        continuation: log-odds of classes.
        combined: numbers of the classes that combine the features of all rules but `lpc`.
    """

    def __init__(self, tables: RuleTables, continuation: Continuation, combined: Classes) -> None:
        self.combined = combined
        self._tables = tables
        self._continuation = continuation
        self._reply_ends = Frequent(REPLY_ENDS)
        self._tenants = Frequent(TENANTS - 1)
        self._categories = Frequent(CATEGORIES)

    @property
    def categories(self) -> int:
        """Number of categories with a number of their own."""
        return self._categories.count

    def features_of(
        self, request: TrackedRequest[Any], new_tokens: int, turn: int, reply_end: Hashable, group: int, log_odds: float | None
    ) -> Features:
        """Return the features of the blocks that a request used for the first time. In the thread of the queue.

        Args:
            new_tokens: tokens at the end of its prompt that were new.
            turn: its turn group.
            reply_end, group, log_odds: see :meth:`eviction_client.policy.policy.Policy.finished`.
        """
        tenant, now = request.tenant, request.at
        return Features(
            0,
            new_group(new_tokens),
            turn,
            self._reply_ends.number(reply_end, now),
            1 + self._tenants.number(tenant, now) if tenant else 0,
            0,
            group,
            odds_group(log_odds),
            self._categories.number(request.category or None, now),
        )

    def spans_of(self, request: TrackedRequest[Any], parts: Iterable[Span]) -> Spans:
        """Set and return the parts of a finished request, with the queue's classes. In the thread of the queue."""
        exact = self._tables.exact
        if exact is None:
            request.parts = self._in_combined_classes(request, parts)
            return request.parts
        request.parts = Spans(parts)
        return _in_own_classes(exact, request)

    def by_rule(self, request: TrackedRequest[Any]) -> Mapping[str, Spans]:
        """Return a request's parts in the classes of each rule, found once for the ghost caches of the cache and its tiers.

        Those of `value` are the ones of all rules with the combined classes. In the background.
        """
        if request.by_rule is None:
            if self._tables.exact is not None:
                request.parts = self._in_combined_classes(request, request.parts)
            request.by_rule = {"value": request.parts}
            for name, rule in RULES.items():
                if name not in self._tables.combining:
                    request.by_rule[name] = request.parts.of_classes(
                        rule.class_of(part.features, request.pooled(part.use)) for part in request.parts
                    )
        return request.by_rule

    def _in_combined_classes(self, request: TrackedRequest[Any], parts: Iterable[Span]) -> Spans:
        """Return the parts of a request's blocks with all their features and their combined classes."""
        _, new, turn, reply_end, tenant, _, group, own, category = request.features
        known, used, keys, now = self.combined.numbers, self.combined.used, self.combined.keys, request.at
        found = Spans()
        for start, end, _, (gap, _, _, _, _, level, _, _, _), shared in parts:
            odds = own
            if shared is not None and (odds or shared.predicted):
                odds = odds_group(request.pooled(shared))
            # As a plain tuple: making features takes three times as long.
            key = gap, new, turn, reply_end, tenant, level, 0 if gap else group, odds, category
            number = known.get(key)
            if number is None:
                features = Features(*key)
                number, is_new = self.combined.number(features, now)
                if is_new:
                    self._tables.add(number, features, self._continuation.of(number, features))
            else:
                features = keys[number]
                used[number] = now
            found.append(span_of((start, end, number, features, shared)))
        return found


def _in_own_classes(rule: Rule, request: TrackedRequest[Any]) -> Spans:
    """Return the parts of a request's blocks with the rule's own classes."""
    class_of, pooled = rule.class_of, request.pooled
    new, turn, category = request.features.new, request.features.turn, request.features.category
    found = Spans()
    for start, end, _, seen, shared in request.parts:
        number = class_of(Features(seen.gap, new, turn, 0, 0, seen.level, 0, 0, category), pooled(shared))
        found.append(span_of((start, end, number, seen, shared)))
    return found
