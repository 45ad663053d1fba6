"""Fills the response caches through a gateway, from a file of expected questions (JSON lines).

A line is `{"question": "..."}` or a request body with `messages`. A cached question does not reach an engine, so an
interrupted run can be repeated.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from lpc.cache.bodies import question
from lpc.errors import LpcError

CHAT: Final = "/v1/chat/completions"
TIMEOUT_S: Final = 600.0
"""Time limit for an engine's answer."""
ADVICE: Final = {
    401: "set LPC_WARM_TOKEN",
    403: "this client may not use the scope: see LPC_GATEWAY_SCOPES",
    404: "check the model's name, and that the address does not end in /v1",
}
"""By HTTP status."""
FAILURES: Final = 5
"""Consecutive failures after which the run stops."""


class WarmError(LpcError):
    """The file or the gateway prevents warming. The message quotes no question."""


@dataclass
class Warmed:
    """Counts of a run.

    Attributes:
        lines: lines in the file.
        cached: answers that were cached already.
        answered: answers of an engine, which the sidecar stores.
        refused: answers that the cache does not accept.
        failed: requests that failed.
        failure: message of the latest failed request; None if none failed.
    """

    lines: int
    cached: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    failure: str | None = None


def warm(
    file: Path, template: Mapping[str, Any], gateway: str, *, token: str | None, scope: str, rate: float
) -> Iterator[Warmed]:
    """Send the questions of a file to a gateway, and yield the counts after each.

    Args:
        file: path of the JSON lines.
        template: a request body to which a question is added as last message.
        gateway: base URL of the gateway.
        token: token of the gateway's client that owns the answers.
        scope: scope of the requests; empty for the default.
        rate: most requests to an engine per second.

    Raises:
        WarmError: a line is invalid, or `FAILURES` consecutive requests failed.
    """
    try:
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise WarmError(f"cannot read {file}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from error
    if not lines:
        raise WarmError(f'{file} is empty: one {{"question": "..."}} or request with messages per line is needed')
    requests = [_request(line, f"{file}, line {number}", template) for number, line in enumerate(lines, 1)]
    headers = {"x-lpc-scope": scope} if scope else {}
    if token:
        headers["authorization"] = f"Bearer {token}"
    warmed = Warmed(len(lines))
    yield warmed
    failures = 0
    with httpx.Client(timeout=TIMEOUT_S, headers=headers, trust_env=False) as http:
        for body in requests:
            began, cache = time.monotonic(), None
            try:
                cache = _send(http, gateway, body)
            except WarmError as error:
                failures += 1
                if failures >= FAILURES:
                    raise
                warmed.failed += 1
                warmed.failure = str(error)
            else:
                failures = 0
                warmed.refused += cache is None
                warmed.answered += cache == "miss"
                warmed.cached += cache not in (None, "miss")
            yield warmed
            if cache in (None, "miss"):
                time.sleep(max(0.0, 1 / rate - (time.monotonic() - began)))


def _request(line: str, where: str, template: Mapping[str, Any]) -> dict[str, Any]:
    try:
        fields = json.loads(line)
        if "question" in fields:
            message = {"role": "user", "content": str(fields["question"])}
            body = {**template, "messages": [*template.get("messages", []), message]}
        else:
            body = {**template, **fields, "messages": list(fields["messages"])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WarmError(f'{where}: expected {{"question": "..."}} or a request with messages') from error
    if not body.get("model"):
        raise WarmError(f"{where}: no model; name it with --served-model or in the line")
    try:
        question(body)
    except (ValueError, KeyError, TypeError):
        # Without the error's own message, which may quote the question.
        raise WarmError(
            f"{where}: not a valid request: send messages without a prompt, numbers without NaN, and Unicode text"
        ) from None
    return body


def _send(http: httpx.Client, gateway: str, body: Mapping[str, Any]) -> str | None:
    """Send a request; return the x-lpc-cache of its answer. Raises WarmError."""
    try:
        response = http.post(f"{gateway.rstrip('/')}{CHAT}", json=body)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise WarmError(f"{gateway} is not an address: use http://host:port") from error
    except httpx.HTTPError as error:
        raise WarmError(f"{gateway} does not answer ({type(error).__name__}): start it, or name another") from error
    if response.status_code != 200:
        advice = ADVICE.get(response.status_code, "try the request with curl")
        raise WarmError(f"{gateway} returned status {response.status_code}: {advice}")
    cache: str | None = response.headers.get("x-lpc-cache")
    return cache
