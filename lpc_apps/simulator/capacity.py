"""One paragraph about a cache in GiB: what it holds, where LRU's cliff lies, and what more memory returns."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final

from lpc_apps.simulator.amounts import percent, tokens
from lpc_apps.simulator.kv_memory import BOTH, GIB, GPU, PREDICTOR_TIMES, TWICE, Mark, Memory
from lpc_apps.simulator.summary import BASELINE, SAME, Rows
from lpc_apps.simulator.workload import Workload

CLIFF: Final = 0.2
"""Least difference of LRU's hit rates per doubling of the cache that is called a cliff."""
WORDS: Final = {GPU: "the GPU alone", BOTH: "the CPU tier", TWICE: "twice that"}
"""Names of marks in a sentence."""
PREDICTING: Final = ("plugin-sidecar", "lpc")
"""Policies that need the predictor."""


def conversation_tokens(workload: Workload) -> int:
    """Return the median of the tokens that a conversation has in the cache at its end, at least one block."""
    longest: dict[str, int] = {}
    for turn in workload.turns():
        longest[turn.conversation] = max(longest.get(turn.conversation, 0), len(turn.all_contents))
    return max(round(median(longest.values())), 1) * workload.block_tokens


def capacity_in_words(rows: Rows, memory: Memory, marks: Sequence[Mark], conversation: int) -> str:
    """Return the paragraph, with emphasis between pairs of asterisks.

    Args:
        rows: from `lpc_apps.simulator.summary.derived`, of one workload.
        marks: sizes of `Memory.marks`, at which policies ran.
        conversation: tokens of a conversation, as of :func:`conversation_tokens`.
    """
    kv = memory.kv
    each = " on each GPU" if kv.gpus > 1 else ""
    said = [f"{kv.model} takes {_bytes(kv.conversation(conversation) / conversation)} of KV cache per token{each}"]
    if not kv.uniform:
        said[0] += f" in a conversation of {tokens(conversation)} tokens, as not all layers keep every token"
    said[0] += "."
    gpu = marks[0]
    fit = f"about {_number(gpu.size / conversation)} conversations of the median length, {tokens(conversation)}"
    said.append(f"{_gib(memory.gpu)}{each} holds **{tokens(gpu.size)} tokens**: {fit}.")
    lru = sorted((row for row in rows if row["policy"] == BASELINE), key=lambda row: row["capacity_tokens"])
    at = {row["capacity_tokens"]: row for row in lru}
    if all(mark.size in at for mark in marks):
        hits = ", ".join(f"{percent(at[mark.size]['hit_rate'])} with {_named(mark)}" for mark in marks)
        said += [f"LRU serves {hits}.", _cliff(lru, conversation), *_money(at, memory, marks)]
    return " ".join(said)


def predictor_in_words(rows: Rows, memory: Memory, left: Mapping[int, int]) -> str:
    """Return the paragraph on a sidecar that shares the GPUs, with emphasis between pairs of asterisks.

    Args:
        rows: from `lpc_apps.simulator.summary.derived`, of one workload.
        left: as of `Memory.left_by_predictor`.
    """
    rates = {(row["policy"], row["capacity_tokens"]): row["hit_rate"] for row in rows}
    each = " of each GPU" if memory.kv.gpus > 1 else ""
    said = [f"The sidecar's model takes {_gib(memory.predictor)}{each} from the cache."]
    of_lru = rates.get((BASELINE, left.get(0)))
    if of_lru is not None:
        said.append(f"LRU with the whole memory serves {percent(of_lru)}.")
    for policy in PREDICTING:
        found = {times: rates[policy, size] for times, size in left.items() if (policy, size) in rates}
        if found:
            served = ", ".join(f"**{percent(rate)}**" if times == 1 else percent(rate) for times, rate in found.items())
            times = ", ".join(map(str, found))
            said.append(f"{policy} serves {served} with a cache that is smaller by {times} times that memory.")
    missing = [times for times in PREDICTOR_TIMES if times not in left]
    if missing:
        said.append(f"{', '.join(map(str, missing))} times that memory leave no room for a conversation.")
    return " ".join(said)


def _named(mark: Mark) -> str:
    return f"{WORDS[mark.name]} ({tokens(mark.size)})"


def _cliff(lru: Sequence[dict[str, Any]], conversation: int) -> str:
    """Return between which sizes LRU's hit rate falls most, if that is a cliff."""
    steps = [
        (above["hit_rate"] - below["hit_rate"], above["capacity_tokens"] / below["capacity_tokens"], below, above)
        for below, above in pairwise(lru)
    ]
    found = [step for step in steps if step[0] >= CLIFF * max(math.log2(step[1]), 0.5)]
    if not found:
        return "There is no cliff between the sizes that were run."
    # Neighbouring steep steps are one cliff.
    steepest = max(found, key=lambda step: step[0] / max(math.log2(step[1]), 0.5))
    first = last = steps.index(steepest)
    while first > 0 and steps[first - 1] in found:
        first -= 1
    while last + 1 < len(steps) and steps[last + 1] in found:
        last += 1
    below, above = steps[first][2], steps[last][3]
    sizes = below["capacity_tokens"], above["capacity_tokens"]
    counts = f"{_number(sizes[1] / conversation)} to {_number(sizes[0] / conversation)}"
    return (
        f"**The cliff** lies between {tokens(sizes[1])} and {tokens(sizes[0])} tokens ({counts} conversations): "
        f"there LRU falls from {percent(above['hit_rate'])} to {percent(below['hit_rate'])}."
    )


def _money(at: dict[int, dict[str, Any]], memory: Memory, marks: Sequence[Mark]) -> list[str]:
    """Return what prefill costs at each size, by the time that its GPUs are busy."""
    if memory.gpu_hour_price is None:
        return []
    price = memory.gpu_hour_price * memory.kv.gpus
    costs = [price * at[mark.size]["prefill_load"] for mark in marks]
    said = [f"Prefill under LRU costs {costs[0]:,.2f} per hour of this traffic with {WORDS[marks[0].name]}"]
    for mark, cost in zip(marks[1:], costs[1:], strict=True):
        less = costs[0] - cost
        returned = f"returns {less:,.2f}" if less >= SAME * max(costs[0], 1e-9) and round(less, 2) > 0 else "returns nothing"
        said.append(f"{WORDS[mark.name]} {returned}")
    return ["; ".join(said) + "."]


def _bytes(count: float) -> str:
    if count < 1024:
        return f"{count:.0f} B"
    return f"{count / 1024:,.1f} KiB" if count < 10 * 1024 else f"{count / 1024:,.0f} KiB"


def _gib(count: float) -> str:
    return f"{count / GIB:g} GiB"


def _number(count: float) -> str:
    return f"{count:,.0f}" if count >= 9.95 else f"{count:.1f}"
