"""Repairs the bodies of requests by named rules, and counts what they change and what it brings.

A share of the conversations can be left as they are. Their requests are counted apart, if a rule would have changed them, so
the hits of both groups are of the same traffic at the same time. Which conversations these are follows from their names or
beginnings alone: in all turns, after restarts and in all gateways they are the same ones.
"""

import logging
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple

from lpc.requests.repair import Read, Repaired, Rule, repaired, rules_of, written
from lpc.requests.rules import Kind
from lpc.wire.bugs import log_bug
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.settings import GatewaySettings
from response_cache.gateway.usage import PromptTokens, Usage

log = logging.getLogger(__name__)

Group = Literal["repaired", "left", "dry_run"]
GROUPS: Final[tuple[Group, ...]] = ("repaired", "left", "dry_run")
"""What became of a request that a rule matches: changed; left, as one of the share that is; sent as it was, in a dry run."""
ANY_RULE: Final = "any"
"""Stands for all rules: a request that several have changed counts once."""


class Repair(NamedTuple):
    """A request after its repair.

    Attributes:
        fields, body: what the engine gets.
        named: the fields by which the conversation is recognised: all its turns begin alike in them.
        group: None: no rule matches.
    """

    fields: Mapping[str, Any]
    body: bytes
    named: Mapping[str, Any]
    group: Group | None = None


class Repairing:
    """The repair of requests. Used by several threads.

    Args:
        kind: returns the kind of the engines.
    """

    def __init__(self, settings: GatewaySettings, metrics: Metrics, kind: Callable[[], Kind]) -> None:
        self._rules = rules_of(settings.gateway_repair)
        self._by_scope = {scope: rules_of(names) for scope, names in settings.gateway_repair_scopes.items()}
        self._dry_run, self._left_share = settings.gateway_repair_dry_run, settings.gateway_repair_left_share
        self._kind = kind
        self._failures = metrics.repair_failures
        self._requests = metrics.repair_requests
        self._tokens = {group: PromptTokens(metrics.repair_tokens, group) for group in self._groups()}
        named = {rule.name for rules in (self._rules, *self._by_scope.values()) for rule in rules}
        for group in self._groups():
            for rule in (*sorted(named), ANY_RULE):
                self._requests.labels(rule, group)

    def _groups(self) -> tuple[Group, ...]:
        if self._dry_run:
            return ("dry_run",)
        return ("repaired", "left") if self._left_share else ("repaired",)

    def rules(self, scope: str) -> tuple[Rule, ...]:
        """Return the rules of a scope."""
        return self._by_scope.get(scope, self._rules)

    def repair(self, read: Read, body: bytes, scope: str, key: Callable[[Mapping[str, Any]], bytes]) -> Repair:
        """Return a request after its repair. Never raises: after an error in a rule it is the request as it was.

        Args:
            read: the JSON object in ``body``, in which no name is there twice.
            key: returns the key of the conversation of such fields.
        """
        fields = read.fields
        unchanged = Repair(fields, body, fields)
        rules = self.rules(scope)
        if not rules:
            return unchanged
        try:
            found = repaired(fields, rules, self._kind())
            if found.fields is fields:
                return unchanged
            group = self._group(found, key)
            result = unchanged._replace(group=group)
            if group == "repaired":
                result = Repair(found.fields, written(read, found).encode(), found.named, group)
        except Exception as error:  # an error of a rule must not fail a request
            self._failures.inc()
            log_bug(log, "a repair rule (the request was sent as it was)", error)
            return unchanged
        for name in {change.rule for change in found.changes} | {ANY_RULE}:
            self._requests.labels(name, group).inc()
        return result

    def _group(self, found: Repaired, key: Callable[[Mapping[str, Any]], bytes]) -> Group:
        if self._dry_run:
            return "dry_run"
        if not self._left_share:
            return "repaired"
        drawn = int.from_bytes(blake2b(key(found.named), digest_size=8, person=b"repair").digest(), "big")
        return "left" if drawn < self._left_share * 2**64 else "repaired"

    def measured(self, group: Group | None) -> "Measured | None":
        """Return what counts the tokens of an answer to a request of a group; None: nothing is to be counted."""
        return None if group is None else Measured(self._tokens[group])


class Measured(Usage):
    """Counts the tokens that an answer reports at its end."""

    def __init__(self, tokens: PromptTokens) -> None:
        super().__init__()
        self._tokens = tokens

    def end(self) -> None:
        """Count the tokens, if the answer has reported any."""
        tokens, cached = self.read()
        if tokens is not None:
            self._tokens.count(tokens, cached)
