"""Finds for each prompt of a log what kept it from continuing an earlier one, and replays the log without it.

1. Each prompt is compared with the closest earlier ones: its head (tools and instructions) with the first head of its *family*,
   that is of heads with mostly the same sentences, and its messages with the conversation's earlier request.
2. An infinite cache shows what the prompt hit, and another one what it would have hit without any difference. The tokens
   between are lost. A cause has lost those behind its change, so the losses of two causes of one prompt overlap.
3. The log is replayed without each cause alone, and without the causes up to and including it.

A prompt that no cache could have served has no finding, because losses are measured against the replay.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from lpc_apps.logs.traces.chat import BLOCK_CHARS
from lpc_apps.why.differences import (
    Change,
    Groups,
    Key,
    Piece,
    entries_of,
    head_pieces,
    history_pieces,
    raw,
    unit_changes,
    without,
)
from lpc_apps.why.prompts import Prompt, Prompts, Unit, block_tokens_of
from lpc_apps.why.replay import Entry, PrefixCache
from lpc_apps.why.sentences import Families

REPORTED: Final = 0.002
"""Share of the prompt tokens from which on a cause is reported."""
CANDIDATES: Final = 8
"""Earlier requests of which the closest one is taken."""
CONTINUES: Final = 0.5
"""Share of the shorter one's messages that a request has in common with the one that it continues: not with a helper's.
A message in another form at the same place is in common."""
EXAMPLES: Final = 2
VALUES: Final = frozenset({"time", "id", "number", "space", "keys", "role", "parts"})
"""Causes that also count between the first messages of different conversations."""
VARIANTS: Final = frozenset({"text", "lines", "tools"})
"""Causes that count only if they keep changing: a prompt in a few forms, for tenants, is computed once for each."""
CHANGING: Final = 0.1
"""Share of a family's requests that lose tokens by such a cause."""


class Example(NamedTuple):
    """A difference: the text before it, what differs, and what an earlier prompt had there. Text of users."""

    before: str
    text: str
    other: str


@dataclass
class Finding:
    """A cause of misses.

    Attributes:
        requests: prompts that lost tokens behind it; ``exposed``: prompts whose heads are of the same families.
        lost: these tokens.
        depth: median of the tokens before it.
        alone, together: hit rate without this cause, and without this and those before it in the list.
    """

    key: Key
    requests: int = 0
    exposed: int = 0
    lost: int = 0
    depth: int = 0
    alone: float = 0.0
    together: float = 0.0
    examples: list[Example] = field(default_factory=list)


class Verdict(NamedTuple):
    """What a prompt hit.

    Attributes:
        tokens, hit: prompt tokens, and those that an infinite cache hits.
        expected: those that it would hit without the causes.
        key: the first cause by which tokens were lost; None: none were.
    """

    tokens: int
    hit: int
    expected: int
    key: Key | None


@dataclass
class Analysis:
    """What was found in a log.

    Attributes:
        tokens: tokens of all prompts.
        hit_rate: hit rate of an infinite cache; ``fixed``: that without all differences.
        lost: tokens between both.
        findings: the largest loss first.
        unshared: prompts that begin like no earlier one, not even without the differences.
        edges: tokens of shared heads behind their last full block.
        verdicts: one for each prompt, in order of time; empty for a log of hashes.
    """

    requests: int
    tokens: int
    hit_rate: float
    fixed: float
    lost: int
    findings: list[Finding]
    unshared: int
    edges: int
    verdicts: list[Verdict] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _Linked:
    """A prompt with the earlier ones it is compared with.

    Attributes:
        family: head that its own head is compared with; ``head``: the comparison.
        before: number of the request that it continues; None: a new conversation.
        opening: first message of another conversation, that a new conversation's first one is compared with.
        history: the comparison of its messages.
        replaced: whether the earlier request's head is of another family.
    """

    prompt: Prompt
    family: Sequence[Unit]
    head: Sequence[Piece]
    before: int | None
    opening: Sequence[Unit]
    history: Sequence[Piece]
    replaced: bool


REPLACED: Final = Key("text", "system", "whole")


def analyse(prompts: Sequence[Prompt], units: Prompts) -> Analysis:
    """Return the causes of misses of a log's prompts, which are in order of time."""
    linked = _link(prompts)
    cache = PrefixCache()
    hits, edges = [], 0
    for each in linked:
        prompt = each.prompt
        entries = [Entry(unit, unit.length) for unit in prompt.units]
        hits.append(cache.hit(prompt.scope, entries))
        cache.add(prompt.scope, entries, prompt.reply)
        head = sum(unit.length for unit in prompt.units[: prompt.head])
        edges += head % BLOCK_CHARS if each.before is None and head and hits[-1] == head // BLOCK_CHARS * BLOCK_CHARS else 0
    total = sum(prompt.length for prompt in prompts)
    tokens = block_tokens_of(prompts)

    def replayed(fixed: "Collection[Key] | None") -> list[int]:
        found = _replay(linked, fixed, units)
        return [max(pair) for pair in zip(hits, found, strict=True)]

    def in_tokens(count: int) -> int:
        return round(count * tokens / BLOCK_CHARS)

    fixed, best = _needed(linked, hits, total, replayed)
    findings = [finding for finding in _findings(linked, hits, best) if finding.key in fixed]
    for number, finding in enumerate(findings):
        upto = {other.key for other in findings[: number + 1]}
        finding.alone = sum(replayed({finding.key})) / total
        finding.together = sum(replayed(upto)) / total if number else finding.alone
        finding.lost, finding.depth = in_tokens(finding.lost), in_tokens(finding.depth)
    return Analysis(
        requests=len(prompts),
        tokens=in_tokens(total),
        hit_rate=sum(hits) / total,
        fixed=sum(best) / total,
        lost=in_tokens(sum(best) - sum(hits)),
        findings=findings,
        edges=in_tokens(edges),
        unshared=sum(not hit for hit in best),
        verdicts=[
            Verdict(
                in_tokens(each.prompt.length), in_tokens(hit), in_tokens(could), _first_cause(linked, each, hit, could, fixed)
            )
            for each, hit, could in zip(linked, hits, best, strict=True)
        ],
    )


def _first_cause(linked: Sequence[_Linked], each: _Linked, hit: int, could: int, fixed: Collection[Key]) -> Key | None:
    """Return the first of the causes by which a prompt lost tokens."""
    if could <= hit:
        return None
    behind = _behind(each, None if each.before is None else linked[each.before], hit)
    return next((change.key for at, _, change in behind if at < could and change.key in fixed), None)


def _needed(
    linked: Sequence[_Linked],
    hits: Sequence[int],
    total: int,
    replayed: "Callable[[Collection[Key] | None], list[int]]",
) -> tuple[set[Key], list[int]]:
    """Return the causes that each add at least REPORTED, and the hits without all of them."""
    best = replayed(None)
    found = [finding for finding in _findings(linked, hits, best) if finding.lost >= REPORTED * total]
    fixed = {finding.key for finding in found if _keeps_changing(finding)}
    best = replayed(fixed)
    for finding in reversed(found):
        if finding.key in fixed:
            others = replayed(fixed - {finding.key})
            if sum(others) > sum(best) - REPORTED * total:
                fixed, best = fixed - {finding.key}, others
    return fixed, best


def _keeps_changing(finding: Finding) -> bool:
    is_variant = finding.key.cause in VARIANTS and finding.key != REPLACED
    return not is_variant or finding.requests >= CHANGING * finding.exposed


def _link(prompts: Sequence[Prompt]) -> list[_Linked]:
    families, openings, earlier = Families(), Families(), _Earlier()
    heads: dict[tuple[Unit, ...], tuple[Sequence[Unit], list[Piece]]] = {}
    linked: list[_Linked] = []
    for number, prompt in enumerate(prompts):
        head = prompt.units[: prompt.head]
        if head not in heads:
            first = families.first(prompt.scope, head)
            heads[head] = first, head_pieces(head, first)
        first, pieces = heads[head]
        before = earlier.find(prompt)
        history: list[Piece] = []
        opening: Sequence[Unit] = ()
        replaced = False
        own = prompt.units[prompt.head :]
        if before is not None:
            known = linked[before]
            history = history_pieces(own, _with_reply(known.prompt))
            replaced = known.family is not first
        elif own:
            opening, history = _opening(prompt, own, openings)
        linked.append(_Linked(prompt, first, pieces, before, opening, history, replaced))
        earlier.add(number, prompt)
    return linked


def _opening(prompt: Prompt, own: tuple[Unit, ...], openings: Families) -> tuple[Sequence[Unit], list[Piece]]:
    """Return the first message of another conversation from the same template, if any, and the comparison with it.

    Other text in a first message is a question, but a time in it changes the template.
    """
    first = openings.first((*prompt.scope, own[0].role), own[:1])
    changes = unit_changes(own[0], first[0], own[0].role) if first[0] is not own[0] else ()
    changes = tuple(change for change in changes or () if change.key.cause in VALUES)
    if not changes:
        return (), [Piece("new", own, 0, 0)]
    return first, [Piece("patch", own[:1], 0, 1, changes), Piece("new", own[1:], 1, 1)]


class _Earlier:
    """Finds the request that a prompt continues: by session, else by messages that both have, and by their places."""

    def __init__(self) -> None:
        self._by_session: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._by_link: dict[tuple[object, ...], list[int]] = {}
        self._prompts: list[Prompt] = []

    def add(self, number: int, prompt: Prompt) -> None:
        """Add a request."""
        own = _with_reply(prompt)
        self._prompts.append(prompt)
        if prompt.session is not None:
            latest = self._by_session[*prompt.scope, prompt.session]
            latest.append(number)
            del latest[:-CANDIDATES]
            return
        for unit in own[-2 * CANDIDATES :]:
            latest = self._by_link.setdefault((prompt.scope, prompt.user, unit.link), [])
            latest.append(number)
            del latest[:-CANDIDATES]

    def find(self, prompt: Prompt) -> int | None:
        """Return the number of the earlier request; the latest of equals; None: there is none."""
        # The last message is new, unless the request is sent again.
        own = prompt.units[prompt.head : -1]
        if prompt.session is not None:
            candidates: Iterable[int] = self._by_session.get((*prompt.scope, prompt.session), ())
        else:
            found: dict[int, None] = {}
            for unit in own[: -2 * CANDIDATES : -1]:
                found |= dict.fromkeys(self._by_link.get((prompt.scope, prompt.user, unit.link), ()))
                if len(found) >= CANDIDATES:
                    break
            candidates = sorted(found)
        best, most = None, 0.0
        for number in candidates:
            places, length = _places(self._prompts[number])
            common = _common(own, self._prompts[number], places, named=prompt.session is not None)
            if common < CONTINUES * min(length, sum(unit.length for unit in own)):
                continue
            if common and common >= most:
                best, most = number, common
        return best


_compared = lru_cache(maxsize=4096)(head_pieces)


@lru_cache(maxsize=4096)
def _places(prompt: Prompt) -> tuple[dict[str, int], int]:
    """Return the places of a request's messages and reply by their links, and their characters."""
    own = _with_reply(prompt)
    return {unit.link: place for place, unit in enumerate(own)}, sum(unit.length for unit in own)


def _with_reply(prompt: Prompt) -> tuple[Unit, ...]:
    return (*prompt.units[prompt.head :], *prompt.reply)


def _common(own: Sequence[Unit], earlier: Prompt, places: Mapping[str, int], *, named: bool) -> int:
    """Return the characters of messages that an earlier request has as well, or has in another form at the same place.

    Args:
        named: both are of one session. Then a reply behind equal messages is the same one, however it is changed.
    """
    others = _with_reply(earlier)
    found, place = 0, -1
    for unit in own:
        linked = places.get(unit.link)
        if linked is not None:
            found, place = found + unit.length, linked
            continue
        place += 1
        other = others[place] if place < len(others) else None
        if other is None or other.role != unit.role:
            place = len(others)
        elif (named and place and unit.role == "assistant") or unit_changes(unit, other, unit.role) is not None:
            found += unit.length
    return found


def _replay(linked: Sequence[_Linked], fixed: "Collection[Key] | None", units: Prompts) -> list[int]:
    """Return the characters that each prompt hits if some differences are taken out of the log; None: all."""
    cache = PrefixCache()
    heads: dict[int, Groups] = {}
    needed = Counter(each.before for each in linked if each.before is not None)
    kept: dict[int, tuple[Groups, Groups]] = {}
    hits = []
    for number, each in enumerate(linked):
        prompt = each.prompt
        head = heads.get(id(each.head))
        if head is None:
            head = heads[id(each.head)] = without(each.head, raw(each.family), fixed, units, each.family)
        before = None if each.before is None else linked[each.before].prompt
        if before is None:
            history = without(each.history, raw(each.opening), fixed, units, each.opening)
        else:
            assert each.before is not None
            other_head, base = kept[each.before]
            history = without(each.history, base, fixed, units, _with_reply(before))
            needed[each.before] -= 1
            if not needed[each.before]:
                del kept[each.before]
            if each.replaced and (fixed is None or REPLACED in fixed):
                head = [[Entry(entry.unit, 0) for entry in entries_of(other_head)]]
        entries = entries_of([*head, *history])
        hits.append(cache.hit(prompt.scope, entries))
        cache.add(prompt.scope, entries, prompt.reply)
        if needed[number]:
            kept[number] = head, [*history, *raw(prompt.reply)]
    return hits


def _findings(linked: Sequence[_Linked], hits: Sequence[int], best: Sequence[int]) -> list[Finding]:
    found: dict[Key, Finding] = {}
    of_family = Counter(id(each.family) for each in linked)
    exposed: defaultdict[Key, set[int]] = defaultdict(set)
    depths: defaultdict[Key, list[int]] = defaultdict(list)
    for each, hit, could in zip(linked, hits, best, strict=True):
        if could <= hit:
            continue
        seen: set[Key] = set()
        for at, piece, change in _behind(each, None if each.before is None else linked[each.before], hit):
            if at >= could or change.key in seen:
                continue
            seen.add(change.key)
            finding = found.setdefault(change.key, Finding(change.key))
            finding.requests += 1
            finding.lost += could - max(hit, at // BLOCK_CHARS * BLOCK_CHARS)
            depths[change.key].append(at)
            exposed[change.key].add(id(each.family))
            if len(finding.examples) < EXAMPLES and (change.text or change.other):
                finding.examples.append(_example(piece, change))
    for key, finding in found.items():
        finding.depth = sorted(depths[key])[len(depths[key]) // 2]
        finding.exposed = sum(of_family[family] for family in exposed[key])
    return sorted(found.values(), key=lambda finding: -finding.lost)


def _behind(each: _Linked, before: "_Linked | None", hit: int) -> list[tuple[int, Piece, Change]]:
    """Return the differences behind which a prompt lost tokens, with the characters before them.

    Changes of whole messages are placed at the message's start, which may be inside the last block of the hit. A head that was
    in the cache may have been there without the conversation's messages.
    """
    changes = list(_changes(each))
    found = [change for change in changes if change[0] >= hit - BLOCK_CHARS]
    found += [] if before is None else _changes_of_head(each, before)
    # Else the prompt differs from the closest one behind a difference from the family's first head.
    return found or changes[:1]


def _changes(each: _Linked) -> Iterable[tuple[int, Piece, Change]]:
    """Yield a prompt's differences, with the characters before them."""
    at = 0
    for piece in (*each.head, *each.history):
        for change in piece.changes:
            yield at + change.at, piece, change
        at += sum(unit.length for unit in piece.own)


def _changes_of_head(each: _Linked, before: _Linked) -> Iterable[tuple[int, Piece, Change]]:
    """Yield the differences from the head of the request that a prompt continues."""
    head, other = each.prompt.units[: each.prompt.head], before.prompt.units[: before.prompt.head]
    if each.replaced:
        yield 0, Piece("new", (), 0, 0), Change(REPLACED, 0, 0)
    elif head != other:
        at = 0
        for piece in _compared(head, other):
            for change in piece.changes:
                yield at + change.at, piece, change
            at += sum(unit.length for unit in piece.own)


def _example(piece: Piece, change: Change) -> Example:
    text = piece.own[0].parts[change.part].text if piece.own else ""
    return Example(text[max(change.start - 40, 0) : change.start], change.text[:80], change.other[:80])
