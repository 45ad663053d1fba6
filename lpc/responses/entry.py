"""What is kept of one answer, and how it is packed before it is sealed."""

import json
import struct
import zlib
from typing import Final, NamedTuple

from lpc.responses.answers import Answer
from lpc.responses.canonical import NAME_BYTES, EntryId, Scope
from lpc.responses.sealing import Keyring, Unsealable

PLAIN, DEFLATED = b"\2", b"\3"
"""The first byte says how a record is packed. Of 0 and 1 none was ever released."""
_read: Final = json.JSONDecoder().decode
_HEAD: Final = struct.Struct(f">I{NAME_BYTES}s{NAME_BYTES}s")
COMPRESS_FROM: Final = 4096
"""Bytes from which deflating is worth the time that inflating takes at each hit."""


class Entry(NamedTuple):
    """An answer and what it was given to.

    Attributes:
        client, scope, tenant: whose it is; compared again with who asks when it is opened.
        model, version: that was asked, and of its weights where the caller knew it.
        question: the last turn; empty where there is none.
        answer: of the engine.
        stored_at, expires_at: seconds since the epoch.
        stamp: the generations of scope, model and model version at which it was asked.
        tags: and their generations.
        partition: of everything but the last turn; zeros where there is none.
        proof: of the ticket that an exact hit gives: it is the same at each, and costs as much as opening the record.
    """

    client: str
    scope: str
    tenant: str
    model: str
    version: str
    question: str
    answer: Answer
    stored_at: float
    expires_at: float
    stamp: tuple[str, ...]
    tags: tuple[tuple[str, str], ...] = ()
    partition: bytes = b""
    proof: bytes = b""

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
        (entry.client, entry.scope, entry.tenant, entry.model, entry.version),
        (entry.question, entry.stored_at, entry.expires_at, entry.stamp, entry.tags),
        (
            *(answer.prompt_tokens, answer.completion_tokens, answer.finish_reason, answer.engine_s),
            [len(chunk) for chunk in answer.chunks],
        ),
    )
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    plain = b"".join((_HEAD.pack(len(text), entry.partition, entry.proof), text, *answer.chunks, answer.body))
    packed = PLAIN + plain if len(plain) < COMPRESS_FROM else DEFLATED + zlib.compress(plain)
    return keys.seal(packed, _place(scope, name))


def unseal(record: bytes, scope: Scope, name: EntryId, keys: Keyring) -> Entry:
    """Return the entry of a record. Raises Unsealable: it is of another key or place, damaged, or of another release."""
    packed = keys.open(record, _place(scope, name))
    how = packed[:1]
    if how not in (PLAIN, DEFLATED):
        raise Unsealable
    try:
        return _entry(zlib.decompress(packed[1:]) if how == DEFLATED else packed[1:])
    except (ValueError, TypeError, struct.error, zlib.error):
        raise Unsealable from None


def _entry(plain: bytes) -> Entry:
    length, partition, proof = _HEAD.unpack_from(plain)
    start = _HEAD.size + length
    whose, what, said = _read(plain[_HEAD.size : start].decode("utf-8", "surrogatepass"))
    client, scope, tenant, model, version = whose
    question, at, until, stamp, tags = what
    prompt, completion, finish, engine_s, lengths = said
    chunks = []
    for length in lengths:
        chunks.append(plain[start : start + length])
        start += length
    answer = Answer(tuple(chunks), plain[start:], prompt, completion, finish, engine_s)
    return Entry(
        *(client, scope, tenant, model, version, question, answer, at, until, tuple(stamp), tuple(map(tuple, tags))),
        partition=partition,
        proof=proof,
    )


def _place(scope: Scope, name: EntryId) -> bytes:
    return b"entry" + scope + name
