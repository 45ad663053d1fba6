"""HTTP client for an LMCache node: deletions."""

from collections.abc import Sequence
from typing import Any, Final

import httpx

from lpc_apps.lmcache.events import ObjectId

TIMEOUT_S: Final = 10.0
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

    def __init__(self, client: httpx.AsyncClient, address: str) -> None:
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
            skipped += int(answer.get("skipped", 0))
        return skipped

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = await self._client.request(method, f"{self._base}{path}", json=body, timeout=TIMEOUT_S)
            if response.is_error:
                # The response text is left out: it can repeat the request body.
                raise NodeError(f"HTTP {response.status_code} to {method} {path}")
            answer = response.json()
        except httpx.HTTPError as error:
            raise NodeError(type(error).__name__) from None
        except ValueError:
            raise NodeError("the answer is not JSON") from None
        if not isinstance(answer, dict):
            raise NodeError("the answer is not a JSON object")
        return answer
