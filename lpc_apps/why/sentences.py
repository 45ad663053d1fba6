"""Families of heads: tools and instructions that are mostly equal, sentence by sentence, if what changes is left out."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from lpc_apps.why.prompts import TOOLS, Unit
from lpc_apps.why.values import masked

ALIKE: Final = 0.3
"""Share of the shorter head that two heads of a family have in common."""
_END: Final = re.compile(r"\n+|(?<=[.!?;,])\s+|(?<=[\u3002\uff01\uff1f\uff1b\uff0c\u3001])")


class Families:
    """The first head of each family."""

    def __init__(self) -> None:
        self._by_sentence: dict[tuple[tuple[str, ...], str], int] = {}
        self._first: list[tuple[Sequence[Unit], int]] = []

    def first(self, scope: tuple[str, ...], head: Sequence[Unit]) -> Sequence[Unit]:
        """Return the first head of the family; the head itself begins a new one."""
        sentences = [sentence for unit in head for sentence in _sentences(unit)]
        length = sum(map(len, sentences))
        common: Counter[int] = Counter()
        for sentence in sentences:
            family = self._by_sentence.get((scope, sentence))
            if family is not None:
                common[family] += len(sentence)
        if common:
            family, shared = max(common.items(), key=lambda item: item[1])
            first, other = self._first[family]
            if shared >= ALIKE * min(length, other):
                for sentence in sentences:
                    self._by_sentence.setdefault((scope, sentence), family)
                return first
        for sentence in sentences:
            self._by_sentence.setdefault((scope, sentence), len(self._first))
        self._first.append((head, length))
        return head


def _sentences(unit: Unit) -> list[str]:
    if unit.role == TOOLS:
        return [masked(unit.canonical)]
    text = "".join(part.text for part in unit.parts if part.kind == "text")
    return [found for piece in _END.split(text) if (found := masked(piece))]
