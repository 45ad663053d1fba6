"""A trace without anything that names a text or a person: keyed hashes of blocks, lengths, times from 0, and numbers.

The key is drawn for each export and not stored. So nobody can test whether a text is in the trace, and exports share nothing.
`qwen` has conversations; `mooncake` has not. Both gain fields that their publishers do not have and other readers ignore: the
`block_size`, and in `qwen` `reply_hash_ids`, `reply_end` and `served`, so that a replay hits the same blocks.
"""

import secrets
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final, Literal

from lpc_apps.logs.traces.qwen import NO_PARENT
from lpc_apps.logs.traces.request import Trace

Form = Literal["mooncake", "qwen"]
APART_S: Final = 1e-6
"""Seconds between requests of one time in `qwen`, whose order is else that of their turns."""


def anonymous(trace: Trace, form: Form) -> Iterator[dict[str, Any]]:
    """Yield the records of a trace, in order of arrival."""
    key = secrets.token_bytes(32)
    numbered: dict[tuple[str, str], int] = {}
    latest: dict[str, int] = {}
    before = -1.0

    def hashed(blocks: tuple[int, ...]) -> list[int]:
        return [int.from_bytes(blake2b(block.to_bytes(8), key=key, digest_size=8).digest()) >> 1 for block in blocks]

    def number(kind: str, name: str) -> str:
        return f"{kind}{numbered.setdefault((kind, name), len(numbered) + 1)}"

    for chat, request in enumerate(trace.requests):
        lengths = {
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": hashed(request.blocks[: -(-request.input_tokens // trace.block_tokens)]),
            "block_size": trace.block_tokens,
        }
        if form == "mooncake":
            yield {"timestamp": round(request.arrival * 1000, 3), **lengths}
            continue
        before = max(round(request.arrival, 6), round(before + APART_S, 6))
        full = request.input_tokens // trace.block_tokens
        reply = request.with_reply
        yield {
            "chat_id": chat,
            "parent_chat_id": latest.get(request.conversation, NO_PARENT),
            "timestamp": before,
            **lengths,
            "type": number("type", request.category),
            "turn": request.turn,
            **({} if reply is None else {"reply_hash_ids": hashed(reply[min(full, len(request.blocks)) :])}),
            **({"reply_end": number("end", request.reply_end)} if request.reply_end else {}),
            **({} if request.served_s is None else {"served": round(request.served_s, 3)}),
        }
        latest[request.conversation] = chat
