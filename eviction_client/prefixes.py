"""The beginnings of prompts that were reused most, as token ids, so that they can be sent again after an engine's restart.

Only with `LPC_LIST_PREFIXES`, since token ids are text to anyone with the tokenizer. A *prefix* is the part of a prompt that an
earlier one had filled. Its *reuses* halve in :data:`HALF_LIFE_S`. While a conversation goes on, its longer prefix takes the
place of its shorter ones; those that other conversations have used stay.

A prompt counts only if its token ids alone make the engine name its blocks alike: no cache salt, LoRA adapter, image or
embedding. So a salted prompt, which belongs to a tenant, is never listed.

In the background alone. The file is written whole or not at all, readable by its owner only.
"""

import json
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from eviction_client.pace import PIECE, pause
from eviction_client.policy.guard import finite
from eviction_client.policy.request import TrackedRequest

H = TypeVar("H", bound=bytes)

FORMAT: Final = "learned-prefix-cache prefixes"
HALF_LIFE_S: Final = 1800.0
LEAST_TOKENS: Final = 128
"""Shorter prefixes are not worth a request."""
MOST_TOKENS: Final = 2_000_000
"""Token ids in memory: 8 MB."""
SEVERAL: Final = 2.0
"""Reuses from which a prefix stays though its conversation goes on: short questions behind it may count as one conversation."""
SPARE: Final = 4
"""Prefixes in memory, relative to those in the file."""


@dataclass(slots=True)
class Prefix:
    """A prefix.

    Attributes:
        tokens: token ids.
        reuses: number of reuses at ``at``, halving in HALF_LIFE_S.
        at: time of the latest, seconds.
        shared: whether another conversation had filled it.
    """

    tokens: "array[int]"
    reuses: float
    at: float
    shared: bool

    def reuses_at(self, now: float) -> float:
        """Return the number of reuses now."""
        return float(self.reuses * 0.5 ** (max(now - self.at, 0.0) / HALF_LIFE_S))


class Prefixes(Generic[H]):
    """The prefixes of one engine.

    Args:
        most: prefixes in the file.
        block_tokens: tokens of a block.

    Attributes:
        tokens: number of token ids in memory.
    """

    def __init__(self, most: int, block_tokens: int) -> None:
        self._most, self._block_tokens = most, block_tokens
        self._found: dict[H, Prefix] = {}
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._found)

    def finished(self, request: TrackedRequest[H]) -> None:
        """Count what a finished request has reused."""
        depth = min(request.old, request.prompt_blocks, len(request.blocks))
        length = depth * self._block_tokens
        if not request.resendable or not request.seen or length < LEAST_TOKENS or length > len(request.token_ids):
            return
        name, now = request.blocks[depth - 1], request.at
        known = self._found.get(name)
        if known is not None:
            known.reuses, known.at = known.reuses_at(now) + 1.0, now
            known.shared = known.shared or self._shared(request, depth)
            return
        shared = self._shared(request, depth)
        if not shared:
            self._forget_shorter(request.blocks[: depth - 1])
        tokens = array("I")
        for start in range(0, length, PIECE):
            tokens.extend(request.token_ids[start : min(start + PIECE, length)])
            pause()
        self._found[name] = Prefix(tokens, 1.0, now, shared)
        self.tokens += length
        if len(self._found) > 2 * SPARE * self._most or self.tokens > MOST_TOKENS:
            self._trim(now)

    def listed(self, now: float) -> list[Prefix]:
        """Return the prefixes with the most reuses, these first."""
        found: dict[bytes, Prefix] = {}  # after a restart the engine may name equal blocks otherwise
        for one in sorted(self._found.values(), key=lambda one: (-one.reuses_at(now), -one.at)):
            found.setdefault(one.tokens.tobytes(), one)
        return list(found.values())[: self._most]

    def saved(self, model: str, now: float) -> Iterator[bytes]:
        """Iterate over the file in small parts: JSON lines. ``model``: name under which the engine serves its model."""
        head = {"format": FORMAT, "at": time.time(), "model": model, "block_tokens": self._block_tokens}
        yield json.dumps(head).encode() + b"\n"
        names = {id(one): name for name, one in self._found.items()}
        for one in self.listed(now):
            entry = {"reuses": float(f"{one.reuses_at(now):.3g}"), "shared": one.shared, "block": names[id(one)].hex()}
            yield json.dumps(entry)[:-1].encode() + b', "tokens": ['
            for start in range(0, len(one.tokens), PIECE):
                yield b"," * (start > 0) + ",".join(map(str, one.tokens[start : start + PIECE])).encode()
            yield b"]}\n"

    def go_on(self, lines: Sequence[Any], model: str, now: float, block: Callable[[bytes], H]) -> None:
        """Take over an earlier process's file, so that two restarts in succession do not lose it. Raises ValueError.

        Args:
            lines: the JSON values of its lines.
            model: see :meth:`saved`. Token ids of another model are another text.
            now: seconds.
            block: returns the block of a name.
        """
        try:
            (at,) = finite([lines[0]["at"]], 1)
            since = now - max(0.0, time.time() - at)
            head = lines[0]["format"], lines[0]["block_tokens"], lines[0]["model"]
            usable = head == (FORMAT, self._block_tokens, model)
            for line in lines[1:] if usable else ():
                (reuses,) = finite([line["reuses"]], 1)
                one = Prefix(array("I", line["tokens"]), max(reuses, 0.0), since, line["shared"] is True)
                self._found[block(bytes.fromhex(line["block"]))] = one
                self.tokens += len(one.tokens)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            self._found, self.tokens = {}, 0
            raise ValueError(f"it is damaged ({type(error).__name__})") from error
        if not usable:
            raise ValueError("it is of another model, block size or version")
        self._trim(now)

    def _shared(self, request: TrackedRequest[H], depth: int) -> bool:
        """Return whether another conversation has used the block before ``depth``."""
        for span in request.gap_spans:
            if span.start < depth <= span.end:
                return span.use is None or span.use.only is None or span.use.only != request.conversation
        return True

    def _forget_shorter(self, blocks: Sequence[H]) -> None:
        for number, block in enumerate(blocks):
            known = self._found.get(block)
            if known is not None and not known.shared and known.reuses < SEVERAL:
                del self._found[block]
                self.tokens -= len(known.tokens)
            if not number % PIECE:
                pause()

    def _trim(self, now: float) -> None:
        """Keep the prefixes with the most reuses, in half of the room."""
        kept: dict[H, Prefix] = {}
        tokens = 0
        for name, one in sorted(self._found.items(), key=lambda item: (-item[1].reuses_at(now), -item[1].at)):
            if len(kept) == SPARE * self._most:
                break
            if tokens + len(one.tokens) <= MOST_TOKENS // 2:
                kept[name] = one
                tokens += len(one.tokens)
        self._found, self.tokens = kept, tokens
