"""Fills the response caches from a file of expected questions (JSON lines).

A line is `{"question": "..."}` or a request body with `messages`. If it has an `"answer": "..."`, no engine is called.
Questions that are cached already are skipped, so an interrupted run can be repeated.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from lpc.cache.bodies import compact, question
from lpc.cache.client import ResponseCacheClient
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.errors import LpcError

CHAT: Final = "/v1/chat/completions"
TIMEOUT_S: Final = 600.0
"""Time limit for an engine's answer."""
ADVICE: Final = {
    401: "set LPC_WARM_TOKEN for a gateway, LPC_WARM_ENGINE_KEY for an engine",
    403: "this client may not use the scope: see LPC_GATEWAY_SCOPES",
    404: "check the model's name, and that the address does not end in /v1",
}
"""By HTTP status."""
FAILURES: Final = 5
"""Consecutive failures after which the run stops."""


class WarmError(LpcError):
    """The file, the engine or the sidecar prevents warming. The message quotes no question."""


@dataclass
class Warmed:
    """Counts of a run.

    Attributes:
        lines: lines in the file.
        there: answers that were cached already.
        stored: answers that were stored.
        refused: answers that were not stored, by reason.
        failure: message of the latest failed request; None if none failed.
    """

    lines: int = 0
    there: int = 0
    stored: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    failure: str | None = None


Ask = Callable[[Mapping[str, Any], str | None], str]
"""Caches the answer to a request, given its body and the answer if known. Returns "there", "stored" or the refusal."""


def warm(file: Path, template: Mapping[str, Any], ask: Ask, *, rate: float) -> Iterator[Warmed]:
    """Cache the answer of each line, and yield the counts after each.

    Args:
        file: path of the JSON lines.
        template: a request body to which a question is added as last message.
        ask: caches one answer.
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
    requests = [_request(line, number, template, file) for number, line in enumerate(lines, 1)]
    warmed = Warmed(len(lines))
    yield warmed
    failures = 0
    for body, answer in requests:
        began = time.monotonic()
        try:
            outcome = ask(body, answer)
        except WarmError as error:
            failures += 1
            warmed.failure = str(error)
            if failures >= FAILURES:
                raise
            outcome = "failed"
        else:
            failures = 0
        if outcome == "there":
            warmed.there += 1
        elif outcome == "stored":
            warmed.stored += 1
        else:
            warmed.refused[outcome] = warmed.refused.get(outcome, 0) + 1
        yield warmed
        if outcome != "there" and answer is None:
            time.sleep(max(0.0, 1 / rate - (time.monotonic() - began)))


@contextlib.contextmanager
def through_sidecar(
    client: ResponseCacheClient, engine: str, *, key: str | None, scope: str, tenant: str, tags: Sequence[str], ttl_s: float
) -> Iterator[Ask]:
    """Yield a function that looks up a request in the sidecar, and on a miss stores an engine's answer.

    Args:
        client: connection to the sidecar.
        engine: base URL of the engine; empty if every line has an answer.
        key: the engine's API key.
        scope: scope of the requests.
        tenant: owner of the answers.
        tags: labels of the answers.
        ttl_s: seconds that the answers may be served; 0 for the scope's time to live.
    """

    def ask(body: Mapping[str, Any], answer: str | None) -> str:
        request = question(body, scope=scope, tenant=tenant, tags=tags)
        found = client.lookup(request, exact_only=True)
        if found.HasField("hit"):
            return "there"
        if found.miss.reason == pb.REASON_UNAVAILABLE:
            raise WarmError("the sidecar or its Redis does not answer: check its log and LPC_PREDICTOR_ADDRESS")
        if found.miss.reason in (pb.REASON_OFF, pb.REASON_REFUSED):
            return found.miss.refusal or "off"
        response = None
        try:
            response = _response(body, answer) if answer is not None else _complete(http, engine, key, body)
        finally:
            message = pb.StoreRequest(request=request, response=response, flight=found.miss.flight, ttl_s=ttl_s)
            message.aborted = response is None
            stored = client.store(message)
        return "stored" if stored.stored else stored.refusal or "refused"

    with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as http:
        yield ask


@contextlib.contextmanager
def through_gateway(gateway: str, *, token: str | None, scope: str) -> Iterator[Ask]:
    """Yield a function that sends requests to a gateway, which caches the answers for the client that owns ``token``."""
    headers = {"x-lpc-scope": scope} if scope else {}
    if token:
        headers["authorization"] = f"Bearer {token}"

    def ask(body: Mapping[str, Any], answer: str | None) -> str:
        if answer is not None:
            raise WarmError("a gateway does not accept answers: leave out --gateway, or remove the answers from the file")
        cache = _post(http, gateway, body, None).headers.get("x-lpc-cache")
        if cache is None:
            return "the gateway's cache is not available, or the request's temperature is not 0"
        return "stored" if cache == "miss" else "there"

    with httpx.Client(timeout=TIMEOUT_S, headers=headers, trust_env=False) as http:
        yield ask


def _request(line: str, number: int, template: Mapping[str, Any], file: Path) -> tuple[dict[str, Any], str | None]:
    try:
        fields = json.loads(line)
        answer = fields.pop("answer", None)
        if "question" in fields:
            message = {"role": "user", "content": str(fields["question"])}
            body = {**template, "messages": [*template.get("messages", []), message]}
        else:
            body = {**template, **fields, "messages": list(fields["messages"])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WarmError(f'{file}, line {number}: expected {{"question": "..."}} or a request with messages') from error
    if not body.get("model"):
        raise WarmError(f"{file}, line {number}: no model; name it with --served-model or in the line")
    body.pop("stream", None)
    try:
        question(body)
    except (ValueError, KeyError, TypeError):
        # Without the error's own message, which may quote the question.
        raise WarmError(
            f"{file}, line {number}: not a valid request: send messages without a prompt, numbers without NaN, and Unicode text"
        ) from None
    return body, None if answer is None else str(answer)


def _response(body: Mapping[str, Any], answer: str) -> pb.Response:
    choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    head = {"id": "chatcmpl-lpc", "object": "chat.completion", "created": int(time.time()), "model": body["model"]}
    return pb.Response(body=compact({**head, "choices": [choice], "usage": usage}), finish_reason="stop")


def _complete(http: httpx.Client, engine: str, key: str | None, body: Mapping[str, Any]) -> pb.Response:
    """Return the engine's answer to a request. Raises WarmError."""
    if not engine:
        raise WarmError("a line has no answer: name an engine with --engine, or a gateway with --gateway")
    began = time.monotonic()
    http_response = _post(http, engine, body, key)
    try:
        answer = http_response.json()
        (choice,) = answer["choices"]
        usage = answer.get("usage") or {}
        return pb.Response(
            body=http_response.content,
            finish_reason=choice["finish_reason"] or "",
            prompt_tokens=usage.get("prompt_tokens", 0),
            completion_tokens=usage.get("completion_tokens", 0),
            engine_s=time.monotonic() - began,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise WarmError(f"{engine} did not return a completion: is it an engine with OpenAI's API?") from error


def _post(http: httpx.Client, base: str, body: Mapping[str, Any], key: str | None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        response = http.post(f"{base.rstrip('/')}{CHAT}", json=body, headers=headers)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise WarmError(f"{base} is not an address: use http://host:port") from error
    except httpx.HTTPError as error:
        raise WarmError(f"{base} does not answer ({type(error).__name__}): start it, or name another") from error
    status = response.status_code
    if status != 200:
        raise WarmError(f"{base} returned status {status}: {ADVICE.get(status, 'try the request with curl')}")
    return response
