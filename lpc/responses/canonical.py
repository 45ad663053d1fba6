"""What was asked, in one form, and the names that it gets in the store.

A name is an HMAC-SHA-256 under the operator's key, cut to 16 bytes: who sees the store can neither read a question from it nor
try one out. It covers everything that was sent but a short list of fields that cannot change an answer (`IGNORED`), so that
a parameter which nobody here has heard of makes another name and never a false hit.

Canonical form: JSON with the fields of request and messages sorted, numbers without a needless fraction, fields that are null
or at their documented default left out. Text stays as it was sent, since composed and decomposed Unicode have other tokens.
Within parameters and tools the order counts, since that of a schema's properties is the order in which they are answered. Of
temperature, top_p, top_k, min_p, repetition_penalty and the length there is no default to fill in: vLLM takes them from the
model's generation_config where a request is silent.
"""

import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple, NewType

from lpc.errors import InvalidRequest

Scope = NewType("Scope", bytes)
"""A client's scope: 16 bytes that say neither's name."""
EntryId = NewType("EntryId", bytes)
"""An entry within its scope: 16 bytes, the name of the exact request."""

NAME_BYTES: Final = 16
REMEMBERED: Final = 10_000
"""Names of scopes that are not computed again."""

IGNORED: Final = frozenset(
    (
        *("stream", "stream_options", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("priority", "request_id", "session_id"),
    )
)
"""Parameters that cannot change an answer. Add one only if that holds for every engine."""
DEFAULTS: Final[Mapping[str, Any]] = {
    "n": 1,
    "best_of": 1,
    "echo": False,
    "logprobs": False,
    "top_logprobs": 0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "stop": [],
    "response_format": {"type": "text"},
    "parallel_tool_calls": True,
}
"""What a parameter means where it is not sent, in the OpenAI API and at vLLM."""
SHOWN: Final = ("echo", "return_token_ids", "return_prompt_text")
"""With these an answer shows the question, letter by letter: it can be that of no other one."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, parsed.

    Attributes:
        model: as the engine knows it, LoRA included.
        parameters: of the body, without model, messages, tools and prompt, as sent.
        messages: oldest first, as JSON objects; a data: URL may be named by its digest.
        tools: as sent.
        prompt: of /v1/completions; None of a chat.
        scope: as declared.
        tenant: a division below the client, opaque.
        model_version: of the weights; empty where not known.
        tags: for invalidation.
        language: of the last user turn; empty where not said.
        size: bytes on the wire, by which work on it is given to a thread; no part of any name.
    """

    model: str
    parameters: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Any] = ()
    prompt: str | None = None
    scope: str = ""
    tenant: str = ""
    model_version: str = ""
    tags: tuple[str, ...] = ()
    language: str = ""
    size: int = 0
    last_turn: str | None = field(init=False, default=None)
    """The text of the last message where that is a user's and nothing but text; None: there is no such turn."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "last_turn", self._last_turn())

    def _last_turn(self) -> str | None:
        if any(self.parameters.get(name) for name in SHOWN):
            return None
        if self.prompt is not None:
            return self.prompt if self.prompt.strip() else None
        if not self.messages or self.messages[-1].get("role") != "user":
            return None
        content = self.messages[-1].get("content")
        if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
            content = content[0].get("text") if content[0].get("type") == "text" and len(content[0]) == 2 else None
        return content if isinstance(content, str) and content.strip() else None


class Names(NamedTuple):
    """What a request is called in the store, each 16 bytes.

    Attributes:
        scope: of the client's scope.
        exact: of the request; the entry's id.
        partition: of everything but the last turn; None where there is none.
    """

    scope: Scope
    exact: EntryId
    partition: bytes | None


class Namer:
    """Gives names under the operator's key."""

    def __init__(self, key: bytes) -> None:
        self._mac = hmac.new(key, digestmod="sha256")
        self._scopes: dict[tuple[str, str], Scope] = {}

    def scope(self, client: str, scope: str) -> Scope:
        """Return the name of a client's scope."""
        found = self._scopes.get((client, scope))
        if found is None:
            if len(self._scopes) >= REMEMBERED:
                self._scopes.clear()
            found = self._scopes[client, scope] = Scope(self._name(b"scope", client.encode(), scope.encode()))
        return found

    def client(self, client: str) -> bytes:
        """Return the name of a client, under which its scopes are listed."""
        return self._name(b"client", client.encode())

    def tenant(self, scope: Scope, tenant: str) -> bytes:
        """Return the name of a tenant within a scope."""
        return self._name(b"tenant", scope, tenant.encode())

    def model(self, scope: Scope, model: str, version: str = "") -> bytes:
        """Return the name of a model, or of one version of it, within a scope."""
        return self._name(b"model", scope, model.encode(), version.encode())

    def tag(self, scope: Scope, tag: str) -> bytes:
        """Return the name of a tag within a scope."""
        return self._name(b"tag", scope, tag.encode())

    def proof(self, *parts: bytes) -> bytes:
        """Return 16 bytes that nobody without the key can give for these parts."""
        return self._name(b"proof", *parts)

    def names(self, client: str, asked: Asked, *, last_turn: bool = True) -> Names:
        """Return all names of a request.

        Args:
            client: as it was authenticated.
            asked: the request.
            last_turn: name the request also by its last turn.

        Raises:
            InvalidRequest: it holds text that is not Unicode.
        """
        scope = self.scope(client, asked.scope)
        names = Names(scope, EntryId(self._name(b"exact", scope, canonical(asked))), None)
        return self.with_last_turn(names, asked) if last_turn else names

    def with_last_turn(self, names: Names, asked: Asked) -> Names:
        """Return the names of a request with those by its last turn, where it has one. Raises InvalidRequest."""
        if asked.last_turn is None:
            return names
        around = canonical(asked, without_last_turn=True)
        return names._replace(partition=self._name(b"partition", names.scope, around, asked.language.encode()))

    def _name(self, *parts: bytes) -> bytes:
        # Each with its length, so that no two lists of parts are the same bytes.
        message = b"".join([len(part).to_bytes(8, "big") + part for part in parts])
        mac = self._mac.copy()
        mac.update(message)
        return mac.digest()[:NAME_BYTES]


def canonical(asked: Asked, *, without_last_turn: bool = False) -> bytes:
    """Return the canonical form of a request, UTF-8. Raises InvalidRequest: it is not Unicode, or nested too deeply."""
    try:
        return _canonical(asked, without_last_turn)
    except UnicodeEncodeError:
        raise InvalidRequest("the request holds half a surrogate pair: send text that is Unicode") from None
    except RecursionError:
        raise InvalidRequest("the request is nested too deeply: send what the engine would be sent") from None


def _canonical(asked: Asked, without_last_turn: bool) -> bytes:
    messages: list[Any] = [_message(message) for message in asked.messages]
    prompt = asked.prompt
    if without_last_turn:
        if prompt is not None:
            prompt = ""
        elif messages:
            messages[-1]["content"] = ""
    form = {
        "form": 3,
        "model": asked.model,
        "version": asked.model_version,
        "tenant": asked.tenant,
        "messages": messages,
        "tools": list(asked.tools),
        "prompt": prompt,
        "parameters": _parameters(asked.parameters),
    }
    return _dump(form).encode()


def read_json(data: bytes, what: str, kind: type[dict[str, Any]] | type[list[Any]]) -> Any:
    """Parse a part of a request. ``kind``: dict or list; of no data an empty one is returned. Raises InvalidRequest."""
    if not data:
        return kind()
    try:
        value = json.loads(data, parse_float=_number, parse_constant=_no_number)
    except (ValueError, RecursionError):
        # Not the parser's words, which may quote what they choked on.
        raise InvalidRequest(f"{what} is not JSON: send what the engine would be sent") from None
    if not isinstance(value, kind):
        raise InvalidRequest(f"{what} must be a JSON {'object' if kind is dict else 'list'}")
    return value


def digest_of(url: str) -> str:
    """Return what stands for a data: URL in the canonical form."""
    return f"sha256:{sha256(url.encode()).hexdigest()}"


# What was parsed from JSON has no circles.
_dump: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False).encode


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: message[name] for name in sorted(message) if message[name] is not None}
    if isinstance(found.get("content"), list):
        found["content"] = [_part(part) for part in found["content"]]
    return found


def _part(part: Any) -> Any:
    """Return a part of a content with the digests of its data in place of the data."""
    if isinstance(part, dict):
        return {name: _url(part[name]) if name == "url" else _part(part[name]) for name in sorted(part)}
    return part


def _url(value: Any) -> Any:
    return digest_of(value) if isinstance(value, str) and value.startswith("data:") else value


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: parameters[name] for name in sorted(parameters) if name not in IGNORED and parameters[name] is not None}
    if isinstance(found.get("stop"), str):
        found["stop"] = [found["stop"]]
    # Neither 1 nor 0 is True or False here, though Python says that they are equal.
    return {
        name: value
        for name, value in found.items()
        if not (name in DEFAULTS and DEFAULTS[name] == value and isinstance(DEFAULTS[name], bool) == isinstance(value, bool))
    }


def _number(text: str) -> int | float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("too large")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _no_number(text: str) -> float:
    raise ValueError(text)
