"""The HTTP that LMCache's nodes speak, as far as it is used: deletions, and fetches ahead."""

from collections.abc import Sequence
from typing import Any, Final

import httpx

from lpc.lmcache.events import ObjectId

TIMEOUT_S: Final = 10.0
DELETED_AT_ONCE: Final = 2000
"""Objects of one call; a node takes 10,000."""


class NodeError(Exception):
    """A node did not do what it was asked. The message holds no token ids."""


class Node:
    """One LMCache node.

    Args:
        client: closed by its owner; its headers carry the token.
        address: host:port of the node's HTTP.
    """

    def __init__(self, client: httpx.AsyncClient, address: str) -> None:
        self._client = client
        self._base = f"http://{address}"

    async def delete(self, tier: str, objects: Sequence[ObjectId]) -> int:
        """Delete objects from a tier; return how many the node has skipped, because they are being read or written.

        Raises NodeError: nothing is known of what it has deleted.
        """
        skipped = 0
        for start in range(0, len(objects), DELETED_AT_ONCE):
            keys = [
                {
                    "chunk_hash_hex": o.hash,
                    "model_name": o.model,
                    "kv_rank": o.rank,
                    "object_group_id": o.group,
                    "cache_salt": o.salt,
                }
                for o in objects[start : start + DELETED_AT_ONCE]
            ]
            answer = await self._ask("DELETE", "/cache/objects", {"keys": keys, "tier": tier})
            if answer.get("ok") is False:
                raise NodeError("it could not delete")
            skipped += int(answer.get("skipped", 0))
        return skipped

    async def fetch(self, model: str, world_size: int, tokens: Sequence[int], salt: str) -> str:
        """Ask for a prompt's chunks to be loaded into memory; return what to ask after, empty if there is nothing to load.

        Raises NodeError.
        """
        body = {"model_name": model, "world_size": world_size, "token_ids": list(tokens), "cache_salt": salt}
        answer = await self._ask("POST", "/cache/prefetches", body)
        return str(answer.get("request_id", ""))

    async def fetched(self, request: str) -> int | None:
        """Return how many objects of a fetch are in memory now; None: it goes on. Raises NodeError."""
        answer = await self._ask("GET", f"/cache/prefetches/{request}")
        return int(answer.get("found_keys", 0)) if answer.get("status") == "completed" else None

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = await self._client.request(method, f"{self._base}{path}", json=body, timeout=TIMEOUT_S)
            if response.is_error:
                # Not its text: an answer about a body that it cannot read repeats the body.
                raise NodeError(f"HTTP {response.status_code} to {method} {path.partition('/prefetches/')[0]}")
            answer = response.json()
        except httpx.HTTPError as error:
            raise NodeError(type(error).__name__) from None
        except ValueError:
            raise NodeError("an answer that is not JSON") from None
        if not isinstance(answer, dict):
            raise NodeError("an answer of another form")
        return answer
