"""Finds for each prompt of a log what kept it from continuing an earlier one, and replays the log without it.

1. Each prompt is compared with the closest earlier ones: its head (tools and instructions) with the first head of its *family*,
   that is of heads with mostly the same sentences, and its messages with the conversation's earlier request.
2. An infinite cache shows what the prompt hit, and another one what it would have hit without any difference. The tokens between
   are lost. A cause has lost those of them that stand behind its change, so the losses of two causes of one prompt overlap.
3. The log is replayed without each cause alone, and without the causes up to and including it.

A prompt that no cache could have served has no finding: what is lost is measured against the replay, not against the difference.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from lpc.logs.traces.chat import BLOCK_CHARS
from lpc_apps.why.differences import Change, Groups, Key, Piece, entries_of, head_pieces, history_pieces, raw, without
from lpc_apps.why.prompts import Prompt, Prompts, Unit, block_tokens_of
from lpc_apps.why.replay import Entry, PrefixCache
from lpc_apps.why.sentences import Families

REPORTED: Final = 0.002
"""Share of the prompt tokens from which on a cause is reported."""
MOST_FINDINGS: Final = 12
CANDIDATES: Final = 8
"""Earlier requests of which the closest one is taken."""
CONTINUES: Final = 0.5
"""Share of an earlier request's messages that a request without a session must have to continue it."""
EXAMPLES: Final = 2


class Example(NamedTuple):
    """A difference: the text before it, what differs, and what an earlier prompt had there. Text of users."""

    before: str
    text: str
    other: str


@dataclass
class Finding:
    """A cause of misses.

    Attributes:
        requests: prompts that lost tokens behind it.
        lost: these tokens.
        depth: median of the tokens before it.
        alone, together: hit rate without this cause, and without this and those before it in the list.
    """

    key: Key
    requests: int = 0
    lost: int = 0
    depth: int = 0
    alone: float = 0.0
    together: float = 0.0
    examples: list[Example] = field(default_factory=list)


@dataclass
class Analysis:
    """What was found in a log.

    Attributes:
        tokens: of all prompts.
        hit_rate: of an infinite cache; ``fixed``: of one without all differences.
        lost: tokens between both.
        findings: the largest loss first; those below REPORTED are only counted.
        small: number of findings that are not listed, and ``small_lost`` their tokens.
        edges: tokens of shared heads behind their last full block.
    """

    requests: int
    tokens: int
    hit_rate: float
    fixed: float
    lost: int
    findings: list[Finding]
    small: int
    small_lost: int
    edges: int


@dataclass(frozen=True, slots=True, eq=False)
class _Linked:
    """A prompt with the earlier ones it is compared with.

    Attributes:
        family: head that its own head is compared with; ``head``: the comparison.
        before: number of the request that it continues; None: a new conversation. ``history``: the comparison.
        replaced: whether the earlier request's head is of another family.
    """

    prompt: Prompt
    family: Sequence[Unit]
    head: Sequence[Piece]
    before: int | None
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
    best = _replay(linked, None, units)
    chars = [prompt.length for prompt in prompts]
    tokens = block_tokens_of(prompts)
    findings = _findings(linked, hits, best)
    total = sum(chars)
    shown = [finding for finding in findings if finding.lost >= REPORTED * total][:MOST_FINDINGS]
    rest = findings[len(shown) :]
    fixed: set[Key] = set()

    def rate(found: Sequence[int]) -> float:
        return sum(max(pair) for pair in zip(hits, found, strict=True)) / max(total, 1)

    for finding in shown:
        fixed.add(finding.key)
        finding.alone = rate(_replay(linked, {finding.key}, units))
        finding.together = rate(_replay(linked, set(fixed), units)) if len(fixed) > 1 else finding.alone

    def in_tokens(count: int) -> int:
        return round(count * tokens / BLOCK_CHARS)

    for finding in findings:
        finding.lost, finding.depth = in_tokens(finding.lost), in_tokens(finding.depth)
    return Analysis(
        requests=len(prompts),
        tokens=in_tokens(total),
        hit_rate=rate(hits),
        fixed=rate(best),
        lost=in_tokens(sum(max(b - a, 0) for a, b in zip(hits, best, strict=True))),
        findings=shown,
        small=len(rest),
        small_lost=sum(finding.lost for finding in rest),
        edges=in_tokens(edges),
    )


def _link(prompts: Sequence[Prompt]) -> list[_Linked]:
    families, earlier = Families(), _Earlier()
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
        replaced = False
        own = prompt.units[prompt.head :]
        if before is not None:
            known = linked[before]
            history = history_pieces(own, (*known.prompt.units[known.prompt.head :], *known.prompt.reply))
            replaced = known.family is not first
        elif own:
            history = [Piece("new", own, 0, 0)]
        linked.append(_Linked(prompt, first, pieces, before, history, replaced))
        earlier.add(number, prompt)
    return linked


class _Earlier:
    """Finds the request that a prompt continues: by session, else by messages that both have."""

    def __init__(self) -> None:
        self._by_session: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        self._by_link: dict[tuple[object, ...], list[int]] = {}
        self._prompts: list[Prompt] = []

    def add(self, number: int, prompt: Prompt) -> None:
        """Add a request."""
        own = (*prompt.units[prompt.head :], *prompt.reply)
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
        own = prompt.units[prompt.head :]
        if prompt.session is not None:
            candidates: Iterable[int] = self._by_session.get((*prompt.scope, prompt.session), ())
        else:
            found: dict[int, None] = {}
            # The last message is new, unless the request is sent again.
            for unit in own[: -2 * CANDIDATES : -1]:
                found |= dict.fromkeys(self._by_link.get((prompt.scope, prompt.user, unit.link), ()))
                if len(found) >= CANDIDATES:
                    break
            candidates = sorted(found)
        best, most = None, 0.0
        for number in candidates:
            links, length = _links(self._prompts[number])
            common = sum(unit.length for unit in own if unit.link in links)
            if prompt.session is None and common < CONTINUES * min(length, sum(unit.length for unit in own)):
                continue
            if common >= most:
                best, most = number, common
        return best


_compared = lru_cache(maxsize=4096)(head_pieces)


@lru_cache(maxsize=4096)
def _links(prompt: Prompt) -> tuple[frozenset[str], int]:
    """Return the links of a request's messages and reply, and their characters."""
    own = (*prompt.units[prompt.head :], *prompt.reply)
    return frozenset(unit.link for unit in own), sum(unit.length for unit in own)


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
            history = raw(prompt.units[prompt.head :])
        else:
            assert each.before is not None
            other_head, base = kept[each.before]
            history = without(each.history, base, fixed, units, (*before.units[before.head :], *before.reply))
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
            if len(finding.examples) < EXAMPLES and (change.text or change.other):
                finding.examples.append(_example(piece, change))
    for key, finding in found.items():
        finding.depth = sorted(depths[key])[len(depths[key]) // 2]
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
