"""Causes of misses in a log of block hashes with names of conversations, by position.

A hash stands for a block and all blocks before it, so nothing behind a change can be compared. A prompt that a change kept from
continuing its conversation's earlier one has lost at most the tokens of both, and this bound is what is counted. If the earlier
prompt is continued later, a shorter one is a branch (an agent's helper), not a change.

- ``compacted``: the prompt has at most half of the earlier one; ``truncated``: less than the earlier prompt and its reply.
- ``reply``: the prompt continues the earlier one, but not with its reply: the blocks differ there, or the prompt is too short
  for it. Thoughts that are not sent back are such a reply. If another prompt has the reply, it is a branch.
- ``start``: many conversations change at the same block: a value in the system prompt, tools in another order.
- ``edited``: any other change.

Without names of conversations no cause is named: a new conversation and a changed one look alike.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from lpc_apps.logs.traces.request import Trace
from lpc_apps.simulator.workload import Turn, from_trace
from lpc_apps.why.analysis import REPORTED, Analysis, Finding
from lpc_apps.why.differences import Key

SAME_PLACE: Final = 0.5
"""Share of the changed conversations that change at one block, from which on the cause is one value there."""
LEAST_CONVERSATIONS: Final = 3


START: Final = -1
"""Stands for the beginning of a prompt among block ids."""

Form = Literal["whole", "truncated", "compacted", "reply"]


@dataclass(frozen=True, slots=True)
class _Change:
    """A prompt that was kept from continuing another one.

    Attributes:
        at: blocks before the change.
        hit, could: blocks that it hit, and at most could have hit.
    """

    conversation: str
    at: int
    hit: int
    could: int
    form: Form


def analyse_hashes(trace: Trace, *, is_named: bool, decodes: bool) -> Analysis:
    """Return the causes of misses of a trace's prompts.

    Args:
        is_named: the trace has names of conversations, which were not recovered from its blocks.
        decodes: replies are cached as well.
    """
    turns = from_trace(trace, count_from=0.0, decodes=decodes).arrivals
    size = trace.block_tokens
    hits = _hits(turns)
    conversations: defaultdict[str, list[tuple[Turn, int]]] = defaultdict(list)
    for turn, hit in zip(turns, hits, strict=True):
        conversations[turn.conversation].append((turn, hit))
    changes = [change for each in conversations.values() if is_named for change in _changes(each)]
    keys = _keys(changes)
    tokens = sum(turn.input_tokens for turn in turns)
    total_hits = sum(hits) * size
    by_key: defaultdict[Key, list[_Change]] = defaultdict(list)
    for change, key in zip(changes, keys, strict=True):
        by_key[key].append(change)
    findings = []
    upto = total_hits
    for key, found in sorted(by_key.items(), key=lambda item: -_lost(item[1])):
        lost = _lost(found) * size
        if lost >= REPORTED * tokens:
            upto += lost
            depth = sorted(change.at for change in found)[len(found) // 2] * size
            finding = Finding(key, len(found), lost=lost, depth=depth, alone=(total_hits + lost) / tokens)
            finding.together = upto / tokens
            findings.append(finding)
    return Analysis(
        requests=len(turns),
        tokens=tokens,
        hit_rate=total_hits / tokens,
        fixed=upto / tokens,
        lost=upto - total_hits,
        findings=findings,
        unshared=sum(not hit for hit in hits),
        edges=0,
    )


def _lost(changes: Sequence[_Change]) -> int:
    return sum(change.could - change.hit for change in changes)


def _hits(turns: Sequence[Turn]) -> list[int]:
    """Return the blocks that each prompt hits in an infinite cache."""
    seen: set[int] = set()
    hits = []
    for turn in turns:
        hits.append(next((depth for depth, block in enumerate(turn.contents) if block not in seen), len(turn.contents)))
        seen.update(turn.all_contents)
    return hits


def _changes(turns: Sequence[tuple[Turn, int]]) -> Iterator[_Change]:
    """Yield the prompts of a conversation that do not continue an earlier one. ``turns``: with their hits."""
    last_use = {block: number for number, (turn, _) in enumerate(turns) for block in turn.contents}
    latest: dict[int, Turn] = {}
    for number, (turn, hit) in enumerate(turns):
        contents = turn.contents
        own = next((depth for depth in range(hit, 0, -1) if contents[depth - 1] in latest), 0)
        earlier = latest.get(contents[own - 1] if own else START)
        latest.update(dict.fromkeys((START, *contents), turn))
        if earlier is None:
            continue
        whole = len(earlier.all_contents)
        # The last block of an earlier prompt, or of a reply, may be a part of a block.
        if own + 1 >= min(len(earlier.contents), len(contents)):
            could = min(whole, len(contents))
            if own >= len(earlier.contents) and hit + 1 < could and earlier.all_contents[-1] not in last_use:
                yield _Change(turn.conversation, own, hit, could, "reply")
            continue
        form: Form = "whole"
        if len(contents) < whole:
            form = "compacted" if len(contents) <= len(earlier.contents) / 2 else "truncated"
        is_branch = form != "whole" and last_use[earlier.contents[-1]] > number
        if hit < min(whole, len(contents)) and not is_branch:
            yield _Change(turn.conversation, own, hit, min(whole, len(contents)), form)


def _keys(changes: Sequence[_Change]) -> list[Key]:
    conversations: defaultdict[int, set[str]] = defaultdict(set)
    forms: defaultdict[int, Counter[Form]] = defaultdict(Counter)
    for change in changes:
        if change.form != "reply":
            conversations[change.at].add(change.conversation)
            forms[change.at][change.form] += 1
    every = len({change.conversation for change in changes if change.form != "reply"})
    least = max(SAME_PLACE * every, LEAST_CONVERSATIONS)
    common = {depth: forms[depth].most_common(1)[0][0] for depth, names in conversations.items() if len(names) >= least}
    found = []
    for change in changes:
        form = change.form if change.form == "reply" else common.get(change.at, change.form)
        if form != "whole":
            found.append(Key(form, "assistant" if form == "reply" else "history"))
        else:
            found.append(Key("start", "system") if change.at in common else Key("edited", "history"))
    return found
