"""The rules, one file each. To add one, write its file and name it in RULES."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from eviction_client.policy.rules.base import Rule
from eviction_client.policy.rules.lpc import Lpc
from eviction_client.policy.rules.lru import Lru
from eviction_client.policy.rules.mq import Mq
from eviction_client.policy.rules.ttl import Ttl
from eviction_client.policy.rules.value import Own, Value
from eviction_client.policy.rules.wa import Wa

RULES: Final[Mapping[str, Rule]] = {rule.name: rule for rule in (Lru(), Ttl(), Mq(), Lpc(), Wa(), Own(), Value())}
"""By name, in the order of metrics and tables. LRU is the first."""
AUTO: Final = "auto"
"""In place of a rule: the guard chooses."""
CHOOSABLE: Final = tuple(rule.name for rule in RULES.values() if rule.choosable)
"""Rules between which the guard chooses."""
HOMES: Final = tuple(rule.name for rule in RULES.values() if rule.home)
"""The guard's home rules. The sidecar's predictions must first show that they gain."""

if TYPE_CHECKING:
    RuleName = str
else:
    RuleName = Literal[(AUTO, *RULES)]
    """AUTO or the name of a rule, for settings and the command line."""
