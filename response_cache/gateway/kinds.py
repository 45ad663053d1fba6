"""Asks engines what they are: kind and version decide which requests they surely read alike (`lpc.requests.rules`).

vLLM has `/version`; SGLang has `/model_info`, before 0.5.20 `/get_model_info`, and its version is in `/server_info`. None of
them costs an engine work. What does not answer as these do is of no known kind.
"""

import json
import re
from typing import Any, Final, Literal, NamedTuple

import httpx

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


async def kind_of(http: httpx.AsyncClient, url: str, headers: dict[str, str]) -> EngineKind | None:
    """Return what an engine is; None: it does not say. ``headers``: with its key. Raises httpx.HTTPError."""
    version = _version(await _fields(http, f"{url}/version", headers))
    if version:
        return EngineKind("vllm", version)
    for path in ("/model_info", "/get_model_info"):
        found = await _fields(http, url + path, headers)
        if "model_path" in found and "is_generation" in found:
            return EngineKind("sglang", _version(await _fields(http, f"{url}/server_info", headers)))
    return None


async def _fields(http: httpx.AsyncClient, url: str, headers: dict[str, str]) -> dict[str, Any]:
    """Return the object of an answer; empty: there is none."""
    body = b""
    async with http.stream("GET", url, headers=headers, timeout=TIMEOUT_S) as answer:
        if answer.status_code != 200:
            return {}
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > MOST_BYTES:
                return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _version(fields: dict[str, Any]) -> str:
    version = fields.get("version")
    return version if isinstance(version, str) and _VERSION.fullmatch(version) else ""
