"""How often the automatic judges of two answers err, where the truth is known.

Truly different answers that a judge calls the same are what breaks the bound (`false_same`); truly same ones that it calls
different cost hits (`false_different`). Three sets of answers:

- *repeated*: replies of ShareGPT to word-for-word the same first question in different conversations: the same by construction;
- *changed*: a real reply, and the same with one number, negation, opposite or name changed in one place: different by
  construction. The hard case: one word in a long text;
- *other*: replies to two different questions: different, the easy case;
- *pairs*: a set of labelled sentences as if they were short answers (PAWS-X: as hard as it gets).
"""

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.semantic.generated import Rule, other_opposite, plain
from lpc.logs.datasets.sharegpt import load_sharegpt
from lpc.responses.semantic.clopper_pearson import upper_limit
from lpc.responses.semantic.pairs import Pair
from lpc.responses.semantic.same_answer import equal_text, same_by_embedding
from lpc.responses.semantic.vectors import Vectors

COUNT: Final = 200
"""Answers of each kind."""
LONGEST: Final = 600
"""Characters of an answer."""
CONFIDENCE: Final = 0.95


def answer_pairs(count: int = COUNT, seed: int = 15) -> dict[str, list[Pair]]:
    """Return pairs of ShareGPT replies by kind, with the truth. Raises DatasetError as `load_sharegpt` does."""
    draw = random.Random(seed)
    replies: defaultdict[str, list[str]] = defaultdict(list)
    for conversation in load_sharegpt():
        if len(conversation.messages) > 1 and conversation.messages[0].role == "user":
            question, reply = conversation.messages[0].content, conversation.messages[1].content
            if 20 <= len(reply) <= LONGEST and len(question) < 400 and conversation.messages[1].role == "assistant":
                replies[plain(question)].append(reply)
    repeated = [Pair(found[0], found[1], True) for found in replies.values() if len(found) > 1 and found[0] != found[1]]
    single = [found[0] for question, found in replies.items() if question]
    draw.shuffle(single)
    changed: list[Pair] = []
    for reply in single:
        other = _changed(reply, draw)
        if other is not None and other != reply:
            changed.append(Pair(reply, other, False))
        if len(changed) == count:
            break
    others = [Pair(a, b, False) for a, b in zip(single[:count], single[count : 2 * count], strict=False)]
    return {"repeated": repeated[:count], "changed": changed, "other": others}


def errors(kinds: dict[str, Sequence[Pair]], vectors: Vectors) -> list[dict[str, Any]]:
    """Return per kind and judge how many were wrongly called the same or different, of how many, and the upper limit."""
    rows: list[dict[str, Any]] = []
    for kind, pairs in kinds.items():
        a, b = vectors.of([pair.a for pair in pairs]), vectors.of([pair.b for pair in pairs])
        similarity = (a * b).sum(axis=1)
        verdicts = {
            "equal text": [equal_text(pair.a, pair.b) for pair in pairs],
            "embedding and numbers": [same_by_embedding(p.a, p.b, float(s)) for p, s in zip(pairs, similarity, strict=True)],
        }
        for judge, said in verdicts.items():
            different = [same for same, pair in zip(said, pairs, strict=True) if not pair.same]
            alike = [same for same, pair in zip(said, pairs, strict=True) if pair.same]
            row: dict[str, Any] = {"answers": kind, "judge": judge, "pairs": len(pairs)}
            if different:
                limit = upper_limit(sum(different), len(different), 1 - CONFIDENCE)
                row |= {"false_same": round(sum(different) / len(different), 4), "false_same_at_most": round(limit, 4)}
            if alike:
                row["false_different"] = round(1 - sum(alike) / len(alike), 4)
            rows.append(row)
    return rows


def _changed(reply: str, draw: random.Random) -> str | None:
    """Return a reply with one thing changed that matters; None where there is none to change."""
    rules: list[Rule] = [_number, _negation, other_opposite]
    draw.shuffle(rules)
    return next((found for rule in rules if (found := rule(reply, draw))), None)


def _number(text: str, draw: random.Random) -> str | None:
    found = list(re.finditer(r"(?<![\w.])\d{1,4}(?![\w.)])", text))
    if not found:
        return None
    match = draw.choice(found)
    return text[: match.start()] + str(int(match[0]) + draw.choice((1, 2, 5, 10))) + text[match.end() :]


def _negation(text: str, draw: random.Random) -> str | None:
    found = list(re.finditer(r"\b(is|are|can|should|will)\b(?= [a-z]+)", text))
    if not found:
        return None
    match = draw.choice(found)
    return text[: match.end()] + " not" + text[match.end() :]
