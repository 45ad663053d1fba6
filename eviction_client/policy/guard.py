"""The guard: which of several rules orders the blocks, from what one ghost cache per rule hits of each request.

Let x_r be the sampled blocks of a request that rule r hits more than LRU. Two decisions are made from these numbers.

**Leader.** For each half-life of HORIZONS, the guard keeps discounted sums of x, and of the squared differences of each pair of
rules. Rule r replaces the leader l if for one of the half-lives

    sum(x_r - x_l) > z * sqrt(sum((x_r - x_l)^2)),

z standard deviations above chance, and no other half-life contradicts it by more multiples of z. A large z with a short memory
finds clear gains within tens of requests; a small z with a long memory finds faint ones. A home rule replaces another
rule at HOMEWARD times z, so a home rule is in force while there is little evidence. Consecutive differences are practically
uncorrelated (sums of 20 requests have 0.9 to 1.2 times the deviation of independent ones). Clipping large differences loses:
they are the signal. With 1.5 or 2 in place of the small z the guard does not find the sidecar's gain on Mooncake at 5%, and
loses as much on Chatbot Arena.

**Account.** One more ghost cache changes its rule with the guard, as the real cache does: after a change it still holds the
other rule's blocks until it has turned over. The account adds what it hits more than LRU's, and REGAINED of the blocks asked
for. It is counted in *disagreements*: w = sum(x^2) / sum(|x|) over requests and rules, the size of a typical difference. It is
at most BANK * w, so past gains do not pay for a long loss. At a debt of ALLOWANCE * w / 2 LRU comes into force. Another rule
returns when its ghost cache has gained, since then, the debt and one standard deviation. It may then lose half of what the
allowance has left. Once the allowance A is used up, a rule must gain WORTH times the debt, and may lose AGAIN * A. The debt
stays, so each return needs more than the one before. So whatever the traffic does, even if it turns whenever the guard does,
the rules in force lose to LRU at most

    REGAINED * blocks asked for + A + sqrt(2 * AGAIN / WORTH * A * G) + one request,  A = ALLOWANCE * w,

where G is what rules would have gained while LRU was in force, and what the cache loses until it has turned over to LRU.

The unit w makes one allowance fit all traffic: it is 0.6 to 2 mean prompts on generated workloads and agents, 2.6 on Mooncake,
and 14 on Chatbot Arena, where a few long conversations decide.

Without the returns after A, LRU stayed in force for 40 minutes in which `value` hit 15% more (segments of ShareGPT, 120K
tokens: 32.7 instead of 38.4%). AGAIN pays for the first minute, in which the cache still holds LRU's blocks. BANK 10 in
place of 3 adds 0.4 to 0.8 points there, and up to 4 on Chatbot Arena, but loses 0.05 to 0.2 on chats with memoryless gaps,
where it was 0.5 below LRU at worst instead of 0.3.

The ghost caches are compared with each other, not with the real cache, which is not sampled, and holds blocks in use.

Sources: follow the leader with a switching cost (Herbster and Warmuth 1998, "Tracking the best expert"); a budget for losses
against a safe choice (Wu et al. 2016, "Conservative bandits"). Fixed-share weights in place of the leader's sums gained 0.1
points less on the same records.

Measured with exact ghost caches and a cache that switches, on 693 runs of seeds that nothing was tuned on (11 generated
workloads, 7 sizes, 3 seeds; without a sidecar, predictions as learned and inverted), after 500 requests: 2.96 points above LRU
on average, worst run -0.30. With the hits of the rule in force instead of the extra cache's: 2.97, -0.50. Always `value`: -7.0.
These runs have 5,000 to 11,000 requests. The allowance does not depend on a log's length, so a shorter one can lose more: of
4,000 requests the worst single runs are -0.30 (`chat-exponential`) and -0.52 (a log of others, before the ghost caches counted
hits at a request's start), of 1,000 requests -2.4 (Mooncake, 8%). See docs/benchmarks/simulator.md, short logs.
Chatbot Arena, 20K to 160K tokens, 20 seeds, against the better of LRU and turn priority at each size: -0.15 to +2.7.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple


class Horizon(NamedTuple):
    """A memory of the leader's sums: half-life in requests, and standard deviations that a change needs."""

    half_life: float
    z: float


HORIZONS: Final = (Horizon(500.0, 2.5), Horizon(4000.0, 1.0))
"""From the shortest to the longest."""
HOMEWARD: Final = 0.5
"""Times the deviations that replace another leader by a home rule."""
ALLOWANCE: Final = 11.0
"""Disagreements that may be lost to LRU before evidence of a gain."""
BANK: Final = 3.0
"""Disagreements of past gains that count against losses."""
REGAINED: Final = 0.0005
"""Share of the blocks asked for by which the account grows: losses that are tolerated in the long run."""
WORTH: Final = 4.0
"""Times the debt that a rule must have gained to return when the allowance is used up."""
AGAIN: Final = 0.5
"""Share of the allowance that it may then lose."""
_RETURN_Z: Final = 1.0
_PRIOR: Final = 3.0
"""Disagreements of a typical prompt's size that are assumed at the start."""
_LARGEST_WEIGHT: Final = 2.0**64
_LARGEST_SAVED: Final = 1e30
_NUMBERS: Final = (
    *("requests", "asked", "asked_squares", "disagreed", "disagreed_squares"),
    *("disagreement", "account", "limit"),
)
"""Attributes that are numbers. The first line's have the weights of the longest horizon."""


def finite(values: Sequence[Any], length: int) -> list[float]:
    """Return saved numbers. Raises ValueError: not ``length`` numbers of a possible size; TypeError: not a list."""
    found = [float(value) for value in values if type(value) in (int, float)]
    if len(found) != len(values) or len(found) != length or not all(abs(value) <= _LARGEST_SAVED for value in found):
        raise ValueError("not so many numbers of a possible size")
    return found


class _Sums:
    """Sums for one horizon. Not the old sums shrink, but the weight of new requests grows, so equal hits cost nothing."""

    __slots__ = ("gained", "growth", "squares", "weight", "z")

    def __init__(self, horizon: Horizon, rules: int) -> None:
        self.growth = 2.0 ** (1.0 / horizon.half_life)
        self.z = horizon.z
        self.weight = 1.0
        self.gained = [0.0] * rules
        self.squares = [[0.0] * rules for _ in range(rules)]

    def add(self, beyond: Sequence[int], pairs: Sequence[tuple[int, int]]) -> None:
        """Add a request's hits beyond LRU's; ``pairs``: of rules that may lead."""
        weight, gained, squares = self.weight, self.gained, self.squares
        for rule, more in enumerate(beyond):
            if more:
                gained[rule] += weight * more
        weight *= weight
        for one, other in pairs:
            difference = beyond[one] - beyond[other]
            if difference:
                squares[one][other] = squares[other][one] = squares[one][other] + weight * difference * difference

    def rescale(self) -> None:
        """Divide all sums by the weight."""
        down = 1.0 / self.weight
        self.gained = [down * total for total in self.gained]
        self.squares = [[down * down * total for total in row] for row in self.squares]
        self.weight = 1.0


class Guard:
    """Decides between rules. Not thread-safe.

    A request costs 0.3 us if all rules hit the same; else 4 us with 4 rules, 7 us with 6.

    Args:
        rules: names in the order of the hits; the first one is "lru".
        homes: the rules that need less evidence than others, not than each other; the first is in force at the start.
        choosable: rules that may be in force, with "lru" and ``homes``; default: all. Others are compared only. A single one is
            always in force.

    Attributes:
        in_force: name of the rule in force.
        switches: changes of the rule in force.

    Raises:
        ValueError: the rules are not distinct or do not begin with "lru", or ``homes`` or ``choosable`` do not fit them.
    """

    def __init__(self, rules: Sequence[str], *, homes: Sequence[str], choosable: Collection[str] | None = None) -> None:
        chosen = tuple(rules) if choosable is None else tuple(choosable)
        if not rules or rules[0] != "lru" or len(set(rules)) != len(rules):
            raise ValueError(f'the rules are {", ".join(rules) or "none"}: give distinct names, "lru" first')
        if (
            not set(chosen) <= set(rules)
            or not homes
            or not set(homes) <= set(chosen)
            or ("lru" not in chosen and len(chosen) > 1)
        ):
            raise ValueError(
                f"the guard cannot choose from the rules {', '.join(chosen)} with {', '.join(homes) or 'none'} at home: "
                'give compared rules, the home rules and "lru" among them'
            )
        self.rules: Final = tuple(rules)
        self.in_force = homes[0]
        self.switches = 0
        self._homes = frozenset(map(self.rules.index, homes))
        self._leader = self._used = self.rules.index(homes[0])
        self._choosable = [number for number, rule in enumerate(rules) if rule in chosen]
        self._pairs = list(combinations(self._choosable, 2))
        self._sums = [_Sums(horizon, len(rules)) for horizon in HORIZONS]
        self._requests = 0.0
        """Requests, with the weights of the longest horizon, like the next four."""
        self._asked = self._asked_squares = 0.0
        self._disagreed = self._disagreed_squares = 0.0
        self._disagreement = 0.0
        """w: blocks of a typical difference between a rule and LRU, as of the latest difference."""
        self._account = 0.0
        self._limit = 0.5
        """Share of the allowance at which LRU comes into force."""
        self._expelled = False
        """LRU is in force because the account was overdrawn."""
        self._regained = [0.0] * len(rules)
        self._regained_squares = [0.0] * len(rules)
        """Gains by rule since then, at least 0, and their squares since they were last 0."""

    @property
    def advantage(self) -> dict[str, float]:
        """Sampled blocks per request that a rule hits more than LRU, a discounted mean, by rule."""
        return {
            rule: gained / self._requests if self._requests else 0.0
            for rule, gained in zip(self.rules, self._sums[-1].gained, strict=True)
        }

    def saved(self) -> dict[str, Any]:
        """Return the evidence as JSON values, in sampled blocks, for a guard of the same rules (:meth:`restore`)."""
        self._rescale(self._sums[-1].weight)
        return {
            "rules": list(self.rules),
            "choosable": [self.rules[number] for number in self._choosable],
            "leader": self._leader,
            "used": self._used,
            "expelled": self._expelled,
            **{name: getattr(self, f"_{name}") for name in _NUMBERS},
            "regained": self._regained,
            "regained_squares": self._regained_squares,
            "gained": [sums.gained for sums in self._sums],
            "squares": [sums.squares for sums in self._sums],
        }

    def restore(self, saved: Mapping[str, Any]) -> bool:
        """Go on from saved evidence; return whether it is of the same rules. If not, nothing changes.

        Raises:
            KeyError, TypeError, ValueError: it is damaged. Nothing has changed.
        """
        if saved["rules"] != list(self.rules) or saved["choosable"] != [self.rules[number] for number in self._choosable]:
            return False
        rules = len(self.rules)
        leader, used, expelled = saved["leader"], saved["used"], saved["expelled"]
        if (
            leader not in self._choosable
            or used not in (0, *self._choosable)
            or type(leader) is not int
            or type(used) is not int
        ):
            raise ValueError("the rule in force")
        numbers = dict(zip(_NUMBERS, finite([saved[name] for name in _NUMBERS], len(_NUMBERS)), strict=True))
        regained, regained_squares = (finite(saved[name], rules) for name in ("regained", "regained_squares"))
        if min(*regained, *regained_squares, *(value for name, value in numbers.items() if name != "account")) < 0.0:
            raise ValueError("a sum below 0")
        gained, squares = ([*saved[name]] for name in ("gained", "squares"))
        if len(gained) != len(HORIZONS) or len(squares) != len(HORIZONS) or any(len(rows) != rules for rows in squares):
            raise ValueError("the horizons")
        for row in (*gained, *(row for rows in squares for row in rows)):
            finite(row, rules)
        for sums, of_rules, of_pairs in zip(self._sums, gained, squares, strict=True):
            sums.weight, sums.gained, sums.squares = 1.0, [*of_rules], [[*row] for row in of_pairs]
        for name, value in numbers.items():
            setattr(self, f"_{name}", value)
        self._regained, self._regained_squares = regained, regained_squares
        self._leader, self._used, self._expelled = leader, used, bool(expelled)
        self.in_force = self.rules[used]
        return True

    def observe(self, hits: Sequence[int], asked: int, chosen: int) -> None:
        """Take in a request, and choose the rule for the next ones.

        Args:
            hits: sampled blocks of its prompt that each rule's ghost cache hit, in the order of ``rules``.
            asked: sampled blocks of its prompt. A request without any is ignored.
            chosen: those of them that the ghost cache hit whose rule is the one in force.

        Raises:
            ValueError: not one number of hits per rule.
        """
        if len(hits) != len(self.rules):
            raise ValueError(f"{len(hits)} numbers of hits for {len(self.rules)} rules")
        if not asked:
            return
        for sums in self._sums:
            sums.weight *= sums.growth
        weight = sums.weight  # of the longest horizon
        self._requests += weight
        self._asked += weight * asked
        self._asked_squares += weight * asked * asked
        self._account = min(self._account + REGAINED * asked, 0.0 if self._expelled else BANK * self._disagreement)
        lru = hits[0]
        if chosen != lru or hits.count(lru) != len(hits):
            self._compare([hit - lru for hit in hits], chosen - lru, weight)
        if self._sums[0].weight > _LARGEST_WEIGHT:
            self._rescale(weight)

    def _compare(self, beyond: Sequence[int], more_chosen: int, weight: float) -> None:
        for sums in self._sums:
            sums.add(beyond, self._pairs)
        for rule in self._choosable:
            more = beyond[rule]
            if more:
                self._disagreed += weight * abs(more)
                self._disagreed_squares += weight * more * more
        if len(self._choosable) == 1:
            return
        prompt = self._asked_squares / self._asked
        assumed = _PRIOR * weight * prompt
        self._disagreement = (self._disagreed_squares + assumed * prompt) / (self._disagreed + assumed)
        self._account = min(self._account + more_chosen, 0.0 if self._expelled else BANK * self._disagreement)
        self._lead()
        chosen = 0 if self._overdrawn(beyond) else self._leader
        if chosen != self._used:
            self._used = chosen
            self.in_force = self.rules[chosen]
            self.switches += 1

    def _lead(self) -> None:
        """Replace the leader by the rule with the strongest evidence against it, if any has enough."""
        leader, most = self._leader, 1.0
        for rule in self._choosable:
            evidence = opposition = 0.0
            for sums in self._sums:
                ahead = sums.gained[rule] - sums.gained[leader]
                squares = sums.squares[rule][leader]
                if ahead and squares > 0.0:
                    deviations = ahead / (sums.z * math.sqrt(squares))
                    if deviations > evidence:
                        evidence = deviations
                    elif deviations < -opposition:
                        opposition = -deviations
            if rule in self._homes and leader not in self._homes:
                evidence /= HOMEWARD
            elif leader in self._homes and rule not in self._homes:
                opposition /= HOMEWARD
            if evidence > most and evidence > opposition:
                self._leader, most = rule, evidence

    def _overdrawn(self, beyond: Sequence[int]) -> bool:
        """Return whether losses to LRU put it in force."""
        allowance = ALLOWANCE * self._disagreement
        if not self._expelled:
            if self._account > -allowance / 4.0:
                self._limit = 0.5
            elif self._used and self._account < -allowance * self._limit:
                self._expelled = True
                self._regained = [0.0] * len(self.rules)
                self._regained_squares = [0.0] * len(self.rules)
            return self._expelled
        debt, returning, most = -self._account, 0, 0.0
        needed = debt if debt < allowance else WORTH * debt
        for rule in self._choosable:
            if beyond[rule]:
                gained = self._regained[rule] = max(self._regained[rule] + beyond[rule], 0.0)
                squares = self._regained_squares[rule] = (self._regained_squares[rule] + beyond[rule] ** 2) if gained else 0.0
            else:
                gained, squares = self._regained[rule], self._regained_squares[rule]
            beyond_debt = gained - needed - _RETURN_Z * math.sqrt(squares)
            if beyond_debt > 0.0 and rule == self._leader:
                returning, most = rule, math.inf
            elif beyond_debt > most:
                returning, most = rule, beyond_debt
        if returning:
            self._leader, self._expelled = returning, False
            used = debt / allowance
            self._limit = (1.0 + used) / 2.0 if used < 1.0 else used + AGAIN
        return self._expelled

    def _rescale(self, weight: float) -> None:
        down = 1.0 / weight
        self._requests *= down
        self._asked *= down
        self._asked_squares *= down
        self._disagreed *= down
        self._disagreed_squares *= down
        for sums in self._sums:
            sums.rescale()
