"""What is kept of one answer, and how it is packed before it is sealed."""

import json
import zlib
from typing import Any, Final, NamedTuple

from lpc.responses.answers import Answer
from lpc.responses.canonical import EntryId, Scope
from lpc.responses.sealing import Keyring, Unsealable

FORMAT: Final = 1
PLAIN, DEFLATED = b"\0", b"\1"
COMPRESS_FROM: Final = 4096
"""Bytes from which deflating is worth the time that inflating takes at each hit."""


class Entry(NamedTuple):
    """An answer and what it was given to.

    Attributes:
        client, scope, tenant: whose it is; compared again with who asks when it is opened.
        question: the last turn; empty where there is none.
        answer: of the engine.
        stored_at, expires_at: seconds since the epoch.
        stamp: the generations of scope, model and model version at which it was asked.
        tags: and their generations.
        partition: of everything but the last turn.
    """

    client: str
    scope: str
    tenant: str
    question: str
    answer: Answer
    stored_at: float
    expires_at: float
    stamp: tuple[str, ...]
    tags: tuple[tuple[str, str], ...] = ()
    partition: bytes = b""

    def life(self, now: float) -> tuple[float, float]:
        """Return its age and what remains of its life, seconds, both within its whole life however the clock was set."""
        whole = self.expires_at - self.stored_at
        age = min(max(now - self.stored_at, 0.0), whole)
        return age, whole - age

    def belongs_to(self, client: str, scope: str, tenant: str) -> bool:
        """Say whether it is of this client, scope and tenant."""
        return (self.client, self.scope, self.tenant) == (client, scope, tenant)


def seal(entry: Entry, scope: Scope, name: EntryId, keys: Keyring) -> bytes:
    """Return an entry as a record of its place."""
    answer = entry.answer
    head = (
        *(FORMAT, entry.client, entry.scope, entry.tenant, entry.question, entry.stored_at, entry.expires_at),
        *(entry.stamp, entry.tags, entry.partition.hex(), answer.prompt_tokens, answer.completion_tokens),
        *(answer.finish_reason, answer.engine_s, [len(chunk) for chunk in answer.chunks]),
    )
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    plain = b"".join((len(text).to_bytes(4, "big"), text, *answer.chunks, answer.body))
    packed = PLAIN + plain if len(plain) < COMPRESS_FROM else DEFLATED + zlib.compress(plain)
    return keys.seal(packed, _place(scope, name))


def unseal(record: bytes, scope: Scope, name: EntryId, keys: Keyring) -> Entry:
    """Return the entry of a record. Raises Unsealable: it is of another key or place, damaged, or of another release."""
    packed = keys.open(record, _place(scope, name))
    try:
        plain = zlib.decompress(packed[1:]) if packed[:1] == DEFLATED else packed[1:]
        length = 4 + int.from_bytes(plain[:4], "big")
        return _entry(json.loads(plain[4:length]), plain[length:])
    except (ValueError, IndexError, TypeError, zlib.error):
        raise Unsealable from None


def _entry(head: list[Any], data: bytes) -> Entry:
    if head[0] != FORMAT:
        raise Unsealable
    _, client, scope, tenant, question, at, until, stamp, tags, partition, prompt, completion, finish, engine_s, lengths = head
    chunks, start = [], 0
    for length in lengths:
        chunks.append(data[start : start + length])
        start += length
    answer = Answer(tuple(chunks), data[start:], prompt, completion, finish, engine_s)
    kept_tags = tuple((tag, generation) for tag, generation in tags)
    return Entry(client, scope, tenant, question, answer, at, until, tuple(stamp), kept_tags, bytes.fromhex(partition))


def _place(scope: Scope, name: EntryId) -> bytes:
    return b"entry" + scope + name
