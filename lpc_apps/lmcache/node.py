"""HTTP client for an LMCache node: deletions.

A node may answer slowly, half, or without end: a call has a deadline, and its answer a largest size.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

import httpx2

from lpc_apps.lmcache.events import ObjectId

TIMEOUT_S: Final = 10.0
"""Longest time of a whole call. httpx2 bounds the time between two bytes only."""
MAX_ANSWER_BYTES: Final = 1 << 20
"""An answer contains a few numbers."""
KEYS_PER_CALL: Final = 2000
"""LMCache's own limit is 10,000."""


class NodeError(Exception):
    """A call to a node failed. The message contains no token ids."""


class Node:
    """One LMCache node.

    Args:
        client: sends the token in its headers; the caller closes it.
        address: host:port of the node's HTTP server.
    """

    def __init__(self, client: httpx2.AsyncClient, address: str) -> None:
        self._client = client
        self._base = f"http://{address}"

    async def delete(self, tier: str, objects: Sequence[ObjectId]) -> int:
        """Delete objects from a tier; return how many the node skipped because they are being read or written.

        Raises NodeError: the node may have deleted any part of them.
        """
        skipped = 0
        for start in range(0, len(objects), KEYS_PER_CALL):
            keys = [
                {
                    "chunk_hash_hex": o.hash,
                    "model_name": o.model,
                    "kv_rank": o.rank,
                    "object_group_id": o.group,
                    "cache_salt": o.salt,
                }
                for o in objects[start : start + KEYS_PER_CALL]
            ]
            answer = await self._call("DELETE", "/cache/objects", {"keys": keys, "tier": tier})
            if answer.get("ok") is False:
                raise NodeError("the node could not delete the objects")
            count = answer.get("skipped", 0)
            if type(count) is not int or not 0 <= count <= len(keys):
                raise NodeError("the answer lacks the number of skipped objects")
            skipped += count
        return skipped

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = json.loads(await self._answer(method, path, body))
        except TimeoutError:
            raise NodeError(f"no complete answer within {TIMEOUT_S:g} s to {method} {path}") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NodeError(type(error).__name__) from None
        except (ValueError, RecursionError):
            raise NodeError("the answer is not JSON") from None
        if not isinstance(answer, dict):
            raise NodeError("the answer is not a JSON object")
        return answer

    async def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        async with self._client.stream(method, f"{self._base}{path}", json=body, timeout=TIMEOUT_S) as response:
            if not response.is_success:  # also a redirect, which is not followed
                # The response text is left out: it can repeat the request body.
                raise NodeError(f"HTTP {response.status_code} to {method} {path}")
            found = bytearray()
            async for part in response.aiter_bytes():
                found += part
                if len(found) > MAX_ANSWER_BYTES:
                    raise NodeError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
        return bytes(found)
