"""Fills the response caches with the answers to questions that are known to come, from a file of JSON lines.

A line is `{"question": "..."}`, or a request's whole body with `messages`; with `"answer": "..."` no engine is asked. What is
kept already is left alone, so a run that was broken off is run again.
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
"""Of one answer of an engine."""
ADVICE: Final = {
    401: "it wants a token or key: a gateway LPC_WARM_TOKEN, an engine LPC_WARM_ENGINE_KEY",
    403: "this client may not name the scope: see LPC_GATEWAY_SCOPES",
    404: "is the model's name right, and the address without /v1?",
}
"""By status of HTTP."""
FAILURES: Final = 5
"""Requests that fail one after the other, after which it gives up."""


class WarmError(LpcError):
    """The caches cannot be warmed: the file, the engine or the sidecar is at fault. The message quotes no question."""


@dataclass
class Warmed:
    """What became of the lines.

    Attributes:
        lines: that the file has.
        refused: by reason.
        failure: why the last request failed that did; None: none did.
    """

    lines: int = 0
    there: int = 0
    stored: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    failure: str | None = None


Ask = Callable[[Mapping[str, Any], str | None], str]
"""Has one request's answer kept, given its body and the answer where it is known; returns "there", "stored" or why not."""


def warm(file: Path, template: Mapping[str, Any], ask: Ask, *, rate: float) -> Iterator[Warmed]:
    """Work a file off, and yield what became of it after each line.

    Args:
        file: JSON lines.
        template: a request's body, of which a question becomes the last message.
        rate: requests that reach an engine, per second.

    Raises:
        WarmError: a line cannot be read, or nothing gets through.
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
            became = ask(body, answer)
        except WarmError as error:
            failures += 1
            warmed.failure = str(error)
            if failures >= FAILURES:
                raise
            became = "failed"
        else:
            failures = 0
        if became == "there":
            warmed.there += 1
        elif became == "stored":
            warmed.stored += 1
        else:
            warmed.refused[became] = warmed.refused.get(became, 0) + 1
        yield warmed
        if became != "there" and answer is None:
            time.sleep(max(0.0, 1 / rate - (time.monotonic() - began)))


@contextlib.contextmanager
def through_sidecar(
    client: ResponseCacheClient, engine: str, *, key: str | None, scope: str, tenant: str, tags: Sequence[str], ttl_s: float
) -> Iterator[Ask]:
    """Yield what asks the sidecar, and where it has no answer an engine.

    Args:
        engine: its base URL; empty: every line has its answer.
        key: for its Authorization.
    """

    def ask(body: Mapping[str, Any], answer: str | None) -> str:
        asked = question(body, scope=scope, tenant=tenant, tags=tags)
        found = client.lookup(asked, exact_only=True)
        if found.HasField("hit"):
            return "there"
        if found.miss.reason == pb.REASON_UNAVAILABLE:
            raise WarmError("the sidecar or its Redis does not answer: look at its log, or name it with LPC_PREDICTOR_ADDRESS")
        if found.miss.reason in (pb.REASON_OFF, pb.REASON_REFUSED):
            return found.miss.refusal or "off"
        response = None
        try:
            response = _known(body, answer) if answer is not None else _asked(http, engine, key, body)
        finally:
            message = pb.StoreRequest(request=asked, response=response, flight=found.miss.flight, ttl_s=ttl_s)
            message.aborted = response is None
            stored = client.store(message)
        return "stored" if stored.stored else stored.refusal or "refused"

    with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as http:
        yield ask


@contextlib.contextmanager
def through_gateway(gateway: str, *, token: str | None, scope: str) -> Iterator[Ask]:
    """Yield what asks a gateway as its clients do, so that they find the answers: with a client's token, for that client."""
    headers = {"x-lpc-scope": scope} if scope else {}
    if token:
        headers["authorization"] = f"Bearer {token}"

    def ask(body: Mapping[str, Any], answer: str | None) -> str:
        if answer is not None:
            raise WarmError("a line has an answer: a gateway takes none, so leave out --gateway and name the sidecar")
        replied = _post(http, gateway, body, None)
        cache = replied.headers.get("x-lpc-cache")
        if cache is None:
            return "the gateway's cache is away, or the request's answers are drawn"
        return "stored" if cache == "miss" else "there"

    with httpx.Client(timeout=TIMEOUT_S, headers=headers, trust_env=False) as http:
        yield ask


def _request(line: str, number: int, template: Mapping[str, Any], file: Path) -> tuple[dict[str, Any], str | None]:
    try:
        read = json.loads(line)
        answer = read.pop("answer", None)
        if "question" in read:
            asked = {"role": "user", "content": str(read["question"])}
            body = {**template, "messages": [*template.get("messages", []), asked]}
        else:
            body = {**template, **read, "messages": list(read["messages"])}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WarmError(f'{file}, line {number}: expected {{"question": "..."}} or a request with messages') from error
    if not body.get("model"):
        raise WarmError(f"{file}, line {number}: which model? Name it with --model, or in the line")
    body.pop("stream", None)
    try:
        question(body)
    except (ValueError, KeyError, TypeError):
        # Not its words, which may quote what was asked.
        raise WarmError(
            f"{file}, line {number}: no request that caches can be asked: send a model, messages without a prompt, and Unicode"
        ) from None
    return body, None if answer is None else str(answer)


def _known(body: Mapping[str, Any], answer: str) -> pb.Response:
    choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    replied = {"id": "chatcmpl-lpc", "object": "chat.completion", "created": int(time.time()), "model": body["model"]}
    return pb.Response(body=compact({**replied, "choices": [choice], "usage": usage}), finish_reason="stop")


def _asked(http: httpx.Client, engine: str, key: str | None, body: Mapping[str, Any]) -> pb.Response:
    if not engine:
        raise WarmError("a line has no answer: name an engine with --engine, or a gateway with --gateway")
    began = time.monotonic()
    replied = _post(http, engine, body, key)
    try:
        answer = replied.json()
        (choice,) = answer["choices"]
        usage = answer.get("usage") or {}
        return pb.Response(
            body=replied.content,
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
        replied = http.post(f"{base.rstrip('/')}{CHAT}", json=body, headers=headers)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise WarmError(f"{base} is not an address: use http://host:port") from error
    except httpx.HTTPError as error:
        raise WarmError(f"{base} does not answer ({type(error).__name__}): start it, or name another") from error
    if replied.status_code != 200:
        raise WarmError(f"{base} answers {replied.status_code}: {ADVICE.get(replied.status_code, 'try the request with curl')}")
    return replied
