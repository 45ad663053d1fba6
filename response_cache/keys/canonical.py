"""The canonical form of a request, and the names under which its answer is stored.

A name is an HMAC-SHA-256 under the operator's key, truncated to 16 bytes, so that a reader of the store can neither recover
nor test a question. It covers the whole request except the fields in `IGNORED`, which cannot change an answer. An unknown
parameter therefore changes the name and never causes a false hit.

A stream and a body have one name, because an answer is served in either form (`store.forms`).

The canonical form is JSON. The fields of request and messages are sorted; fields that are null or at their documented default
are left out. What no engine reads apart on any template is one (`lpc.requests`): one text part and a string, marks of caches,
unknown keys of tools. A gateway that knows its engines' kind leaves out more before it asks. Numbers stay as sent, because
templates print 1 and 1.0 apart; only parameters of sampling are compared by value.
Text is not normalised, because composed and decomposed Unicode have different tokens.
The order within a parameter or tool is kept: a model answers a schema's properties in their order. temperature, top_p, top_k,
min_p, repetition_penalty and the length have no default here, because vLLM takes theirs from the model's generation_config.
"""

import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple, NewType

from lpc.errors import InvalidRequest
from lpc.requests import surely
from lpc.requests.rules import ANY, NULL_COUNTS
from response_cache.semantic.normal import normal_form
from response_cache.semantic.vetoes import language_of

Scope = NewType("Scope", bytes)
"""Name of a client's scope: 16 bytes."""
EntryId = NewType("EntryId", bytes)
"""Name of an entry within its scope, which is the name of the exact request: 16 bytes."""

NAME_BYTES: Final = 16
CLIENT: Final = "client:"
"""Start of the tenants of a gateway's clients: `client:NAME`, or `client:NAME:PART` of one that divides itself into parts."""
REMEMBERED: Final = 10_000
"""Size limit of in-memory caches by scope or key."""

IGNORED: Final = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("priority", "request_id", "session_id"),
    )
)
"""Parameters that can change neither an answer nor its form. Add one only if that holds for every engine."""
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
    "stream": False,
    "chat_template_kwargs": {},
}
"""Default values of parameters in the OpenAI API and in vLLM."""
SAMPLING: Final = frozenset(
    (
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        *("length_penalty", "n", "best_of", "seed", "max_tokens", "max_completion_tokens", "min_tokens"),
        *("logprobs", "top_logprobs", "prompt_logprobs"),
    )
)
"""Parameters that an engine reads as numbers: 1 and 1.0 are one."""
SHOWN: Final = ("echo", "return_token_ids", "return_prompt_text")
"""With these parameters an answer quotes the question, so that it cannot answer another one."""


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """A parsed request.

    Attributes:
        model: the model's or LoRA adapter's name at the engine.
        parameters: fields of the body without model, messages, tools and prompt, as sent.
        messages: JSON objects, oldest first; a digest may replace a data: URL.
        tools: JSON objects, as sent; None: there are none. An engine may refuse an empty list.
        prompt: prompt of /v1/completions; None for a chat.
        scope: name of the scope, as sent.
        tenant: opaque name of the client's own client.
        size: bytes on the wire, not part of any name. Work on a large request runs in a thread.
    """

    model: str
    parameters: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Any] | None = None
    prompt: str | None = None
    scope: str = ""
    tenant: str = ""
    size: int = 0
    last_turn: str | None = field(init=False, default=None)
    """The text of the last message if it is a user's and only text; else None."""

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
        if isinstance(content, list) and len(content) == 1:
            content = surely.text_of(surely.part(content[0]))
        return content if isinstance(content, str) and content.strip() else None

    def user_texts(self) -> list[str]:
        """Return all texts of the user, oldest first."""
        found = [] if self.prompt is None else [self.prompt]
        for message in self.messages:
            if message.get("role") == "user":
                content = message.get("content")
                parts = content if isinstance(content, list) else [content]
                texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
                found += [text for text in texts if isinstance(text, str)]
        return found


def owner_of(tenant: str) -> str:
    """Return the tenant whose limits apply: of a part of a client the client, since it may invent any number of parts."""
    return ":".join(tenant.split(":", 2)[:2]) if tenant.startswith(CLIENT) else tenant


class Names(NamedTuple):
    """Names of a request in the store, each 16 bytes.

    Attributes:
        scope: name of the client's scope.
        exact: name of the request, which is the entry's id.
        partition: name of everything but the last turn, and of its language; None if there is no last turn.
        normal: name of the partition and of the last turn's normal form; None if there is no last turn.
    """

    scope: Scope
    exact: EntryId
    partition: bytes | None
    normal: bytes | None = None


class Namer:
    """Computes names under the operator's key."""

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
        """Return the name of a client."""
        return self._name(b"client", client.encode())

    def tenant(self, scope: Scope, tenant: str) -> bytes:
        """Return the name of a tenant within a scope."""
        return self._name(b"tenant", scope, tenant.encode())

    def question(self, scope: Scope, tenant: str, text: str) -> str:
        """Return a digest of a tenant's question, hexadecimal."""
        return self._name(b"question", scope, tenant.encode(), text.encode("utf-8", "surrogatepass")).hex()

    def proof(self, *parts: bytes) -> bytes:
        """Return a MAC of these parts, 16 bytes."""
        return self._name(b"proof", *parts)

    def names(self, client: str, request: CacheRequest, *, last_turn: bool = True) -> Names:
        """Return the names of a request.

        Args:
            client: authenticated name of the client.
            request: the request.
            last_turn: whether to compute partition and normal form.

        Raises:
            InvalidRequest: its text is not Unicode, or it is nested too deeply.
        """
        scope = self.scope(client, request.scope)
        names = Names(scope, EntryId(self._name(b"exact", scope, canonical(request))), None)
        return self.with_last_turn(names, request) if last_turn else names

    def with_last_turn(self, names: Names, request: CacheRequest) -> Names:
        """Return the names with partition and normal form, if the request has a last turn. Raises InvalidRequest."""
        if request.last_turn is None:
            return names
        around = canonical(request, without_last_turn=True)
        form = normal_form(request.last_turn)
        partition = self._name(b"partition", names.scope, around, language_of(form).encode())
        return names._replace(partition=partition, normal=self._name(b"normal", partition, form.encode()))

    def _name(self, *parts: bytes) -> bytes:
        # With lengths, so that different lists of parts have different bytes.
        message = b"".join([len(part).to_bytes(8, "big") + part for part in parts])
        mac = self._mac.copy()
        mac.update(message)
        return mac.digest()[:NAME_BYTES]


def canonical(request: CacheRequest, *, without_last_turn: bool = False) -> bytes:
    """Return the canonical form of a request. Raises InvalidRequest if it is not Unicode or is nested too deeply."""
    try:
        return _canonical(request, without_last_turn)
    except UnicodeEncodeError:
        raise InvalidRequest("the request has half of a surrogate pair: send Unicode text") from None
    except RecursionError:
        raise InvalidRequest("the request is nested too deeply: send the body that the engine accepts") from None


def _canonical(request: CacheRequest, without_last_turn: bool) -> bytes:
    messages: list[Any] = [_message(message) for message in request.messages]
    prompt = request.prompt
    if without_last_turn:
        if prompt is not None:
            prompt = ""
        elif messages:
            messages[-1]["content"] = ""
    form = {
        "model": request.model,
        "tenant": request.tenant,
        "messages": messages,
        "tools": None if request.tools is None else surely.tools(request.tools, ANY),
        "prompt": prompt,
        "parameters": _parameters(request.parameters, has_tools=bool(request.tools)),
    }
    return _dump(form).encode()


def read_json(data: bytes, what: str, kind: type[dict[str, Any]] | type[list[Any]]) -> Any:
    """Parse a part of a request as a dict or list (``kind``), which is empty if there is no data. Raises InvalidRequest."""
    if not data:
        return kind()
    try:
        value = json.loads(data, parse_float=_finite, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        # Without the parser's message, which may quote the request.
        raise InvalidRequest(f"{what} is not JSON: send the body that the engine accepts") from None
    if not isinstance(value, kind):
        raise InvalidRequest(f"{what} must be a JSON {'object' if kind is dict else 'list'}")
    return value


def digest_of(url: str) -> str:
    """Return what replaces a data: URL in the canonical form."""
    return f"sha256:{sha256(url.encode()).hexdigest()}"


# Values that were parsed from JSON have no cycles.
_dump: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False).encode


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    message = surely.without_nulls(surely.message(message, ANY))
    found = {name: message[name] for name in sorted(message)}
    if isinstance(found.get("content"), list):
        found["content"] = [_part(part) for part in found["content"]]
    return found


def _part(part: Any) -> Any:
    """Return a content part in which digests replace data: URLs."""
    if isinstance(part, dict):
        return {name: _url(part[name]) if name == "url" else _part(part[name]) for name in sorted(part)}
    return part


def _url(value: Any) -> Any:
    return digest_of(value) if isinstance(value, str) and value.startswith("data:") else value


def _parameters(parameters: Mapping[str, Any], *, has_tools: bool) -> dict[str, Any]:
    found = {
        name: parameters[name]
        for name in sorted(parameters)
        if name not in IGNORED and (parameters[name] is not None or name in NULL_COUNTS)
    }
    found |= {name: _number(found[name]) for name in SAMPLING & found.keys()}
    if "tool_choice" in found and surely.is_default(found["tool_choice"], has_tools, ANY):
        del found["tool_choice"]
    if isinstance(found.get("stop"), str):
        found["stop"] = [found["stop"]]
    if found.get("stream") is True:
        del found["stream"]
        if options := _without_usage(found.pop("stream_options", {})):
            found["stream_options"] = options
    # 1 and True are equal in Python but differ as JSON; so do 0 and False.
    return {
        name: value
        for name, value in found.items()
        if not (name in DEFAULTS and DEFAULTS[name] == value and isinstance(DEFAULTS[name], bool) == isinstance(value, bool))
    }


def _without_usage(options: Any) -> Any:
    """Return `stream_options` without what only chooses the answer's form."""
    if not isinstance(options, Mapping) or not isinstance(options.get("include_usage", False), bool):
        return options
    return {name: value for name, value in options.items() if name != "include_usage"}


def _number(value: Any) -> Any:
    """Return a whole number for a float that is one, also for -0.0."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("too large")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(text)
