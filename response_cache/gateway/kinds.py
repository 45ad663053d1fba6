"""Asks engines what they are: kind and version decide which requests they surely read alike (`lpc.requests.rules`).

vLLM has `/version`; SGLang has `/model_info`, before 0.5.20 `/get_model_info`, and its version is in `/server_info`. None of
them costs an engine work. What does not answer as these do is of no known kind.
"""

import json
import re
from typing import Any, Final, Literal, NamedTuple

import httpx2

from lpc.requests.rules import sure

TIMEOUT_S: Final = 2.0
MOST_BYTES: Final = 1 << 20
"""Of an answer; SGLang's has all its settings."""
_VERSION: Final = re.compile(r"\d[0-9A-Za-z.+_-]{0,63}")


class EngineKind(NamedTuple):
    """What an engine says that it is. ``version`` is empty if it does not say."""

    kind: Literal["vllm", "sglang"]
    version: str

    @property
    def rules(self) -> frozenset[str]:
        """Names of the rules that surely hold in it; none in a version in which they were not run."""
        return sure(self.kind, self.version) if self.version else frozenset()

    def __str__(self) -> str:
        return f"{'vLLM' if self.kind == 'vllm' else 'SGLang'} {self.version or '(unknown version)'}"


async def kind_of(http: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> EngineKind | None:
    """Return what an engine is; None: it does not say. ``headers``: with its key. Raises httpx2.HTTPError."""
    version = _version(await fields_of(http, f"{url}/version", headers))
    if version:
        return EngineKind("vllm", version)
    for path in ("/model_info", "/get_model_info"):
        found = await fields_of(http, url + path, headers)
        if "model_path" in found and "is_generation" in found:
            return EngineKind("sglang", _version(await fields_of(http, f"{url}/server_info", headers)))
    return None


async def fields_of(http: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> dict[str, Any]:
    """Return the object of an answer; empty: there is none. Raises httpx2.HTTPError."""
    try:
        found = json.loads(await bytes_of(http, url, headers, MOST_BYTES))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def bytes_of(http: httpx2.AsyncClient, url: str, headers: dict[str, str], most: int) -> bytes:
    """Return the body of an answer 200 of at most so many bytes; empty: there is none. Raises httpx2.HTTPError."""
    body = bytearray()
    async with http.stream("GET", url, headers=headers, timeout=TIMEOUT_S) as answer:
        if answer.status_code != 200:
            return b""
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > most:
                return b""
    return bytes(body)


def _version(fields: dict[str, Any]) -> str:
    version = fields.get("version")
    return version if isinstance(version, str) and _VERSION.fullmatch(version) else ""
