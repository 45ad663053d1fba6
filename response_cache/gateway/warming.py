"""Warm-up: asks the gateway for the answers that users are expected to want, slowly.

It is one more caller of the gateway: it has the token of one client, so that it can fetch answers for that tenant alone. What
is cached already reaches no engine. So a run that was interrupted, or is done by two processes at once, asks nothing twice.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, get_args

import httpx2

from lpc.errors import LpcError
from response_cache.gateway.targets import CHAT, COMPLETIONS, FREQUENT
from response_cache.semantic.evidence import Tier

log = logging.getLogger(__name__)

LONGEST: Final = 256 * 2**10
"""Longest line of a file in bytes. The caches are not asked about longer requests."""
IN_VAIN: Final = 5
"""Consecutive requests without use after which a run ends."""
WAITS_S: Final = (1.0, 4.0, 16.0)
"""Pauses before a request is sent again after a refusal that may pass."""
CACHED: Final = ("exact", *get_args(Tier))
"""Values of `x-lpc-cache` of an answer that reached no engine."""
MAY_PASS: Final = frozenset((408, 429, 500, 502, 503, 504))
TIMEOUT_S: Final = 300.0


class WarmError(LpcError):
    """A warm-up cannot go on."""


@dataclass
class Warmed:
    """Requests of a run.

    Attributes:
        asked: an engine answered.
        cached: the answer was cached already.
        failed: refused, or without an answer.
        skipped: lines that are not a request, or that were there before.
    """

    asked: int = 0
    cached: int = 0
    failed: int = 0
    skipped: int = 0

    def figures(self) -> dict[str, int]:
        """Return the numbers by name."""
        return asdict(self)


def read_requests(path: Path, warmed: Warmed) -> Iterator[dict[str, Any]]:
    """Yield the request bodies in a file of JSON lines, and count other lines in ``warmed``. Raises WarmError."""
    try:
        with path.open("rb") as lines:
            if not lines.peek(1):
                raise WarmError(f"{path} is empty: write one request body per line")
            while line := lines.readline(LONGEST + 1):
                if len(line) > LONGEST:
                    while line and not line.endswith(b"\n"):
                        line = lines.readline(LONGEST)
                    warmed.skipped += 1
                elif line.strip():
                    body = _body(line)
                    if body is None:
                        warmed.skipped += 1
                    else:
                        yield body
    except OSError as error:
        raise WarmError(f"cannot read {path}: {error.strerror}") from error


def _body(line: bytes) -> dict[str, Any] | None:
    """Return the request body in a line; None if there is none."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    wanted = isinstance(body, dict) and isinstance(body.get("model"), str) and (body.get("messages") or body.get("prompt"))
    return body if wanted else None


class Warmer:
    """Sends requests to a gateway as one client, in one scope.

    Args:
        client: with the gateway's address and the client's token.
        scope: name of the scope; empty for the default one.
        rate: most requests per second that reach an engine.
        most: most requests that reach an engine in one run.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        scope: str = "",
        rate: float = 5.0,
        most: int = 100,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client, self._rate, self._most, self._sleep = client, rate, most, sleep
        self._headers = {"x-lpc-scope": scope} if scope else {}

    async def yesterday(self) -> list[dict[str, Any]]:
        """Return the client's frequent questions of yesterday, the most frequent first. Raises WarmError."""
        answer = await self._send("GET", FREQUENT, None)
        if answer is None or answer.status_code != httpx2.codes.OK:
            raise WarmError(f"the gateway does not return yesterday's questions: {_reason(answer)}")
        try:
            return [dict(one["body"]) for one in answer.json()["questions"]]
        except (ValueError, LookupError, TypeError, RecursionError):
            raise WarmError("the gateway's list of questions is not what a gateway of this release sends") from None

    async def run(self, bodies: Iterable[Mapping[str, Any]], warmed: Warmed) -> None:
        """Send requests in order, and count them in ``warmed``. Raises WarmError if nothing is gained."""
        seen: set[bytes] = set()
        in_vain, most = 0, warmed.asked + self._most
        for body in bodies:
            if warmed.asked >= most:
                return
            content, name = _content(body)
            if content is None or name in seen:
                warmed.skipped += 1
                continue
            seen.add(name)
            answer = await self._send("POST", COMPLETIONS if "prompt" in body else CHAT, content)
            result = "" if answer is None else answer.headers.get("x-lpc-cache", "")
            if answer is None or answer.status_code != httpx2.codes.OK:
                warmed.failed, result = warmed.failed + 1, ""
            elif result in CACHED:
                warmed.cached += 1
            else:
                warmed.asked += 1
                await self._sleep(1 / self._rate)
            in_vain = 0 if result else in_vain + 1
            if in_vain == IN_VAIN:
                raise WarmError(
                    f"{IN_VAIN} requests in succession left nothing in the cache, the last one: {_reason(answer)}. Answers are "
                    "cached at temperature 0, or in a scope with any_temperature"
                )

    async def _send(self, method: str, path: str, content: str | None) -> httpx2.Response | None:
        """Return the answer without its body unless that is JSON; None without a connection. Raises WarmError (401, 403)."""
        answer = None
        for wait_s in (*WAITS_S, None):
            answer = await self._once(method, path, content)
            if answer is not None and answer.status_code in (401, 403):
                raise WarmError(f"the gateway refuses this client: {_reason(answer)}")
            if wait_s is None or (answer is not None and answer.status_code not in MAY_PASS):
                break
            await self._sleep(wait_s)
        return answer

    async def _once(self, method: str, path: str, content: str | None) -> httpx2.Response | None:
        headers = self._headers if content is None else {"content-type": "application/json", **self._headers}
        try:
            encoded = None if content is None else content.encode()
            return await self._client.request(method, path, content=encoded, headers=headers)
        except httpx2.RequestError as error:
            log.debug("no answer of the gateway: %s", type(error).__name__)
            return None
        except UnicodeEncodeError:  # half of a surrogate pair
            return httpx2.Response(httpx2.codes.BAD_REQUEST)


def _content(body: Mapping[str, Any]) -> tuple[str | None, bytes]:
    """Return a body's JSON and its name. No JSON: the body has NaN or infinity, or is nested more deeply than JSON may be."""
    try:
        named = json.dumps(body, sort_keys=True).encode("utf-8", "replace")
        return json.dumps(body, ensure_ascii=False, allow_nan=False), sha256(named).digest()
    except (ValueError, RecursionError):
        return None, b""


def _reason(answer: httpx2.Response | None) -> str:
    """Return why an answer is of no use, without what a user wrote."""
    if answer is None:
        return "it does not answer; start it, or name another with --gateway"
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return f"HTTP {answer.status_code}"
    return (
        f"HTTP {answer.status_code}, {message}" if answer.status_code in (401, 403, 404, 503) else f"HTTP {answer.status_code}"
    )
