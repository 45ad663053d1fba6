"""What a request to a model asks: read from the JSON of its body, before anybody is asked.

It is one step without waiting, in a thread for long bodies. The C code of `json` holds the interpreter's lock while it parses,
so the number of values is bounded before it begins.

Clients say how long their prompt is to be kept in the protocols that clients and routers speak:

- Anthropic's `cache_control`, of the body or of a block in tools, system, messages: `{"type": "ephemeral", "ttl": "1h"}`;
- NVIDIA Dynamo's `nvext.cache_control`, the same object, whose `ttl` may also be `90s` or `30m` (ai-dynamo/dynamo#6213);
- OpenAI's `prompt_cache_options.ttl`, and `prompt_cache_retention`: `24h`, or `in_memory`, which asks for nothing.

Of several the longest counts, and for the whole prompt: a plug-in knows no breakpoints. What the engine does with it is the
operator's to say (``LPC_HINTS_SHARE``).
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from lpc.cache.bodies import question
from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.v1 import predictor_pb2
from lpc_apps.gateway.clients import NAMES, SALT, Tenants, text_at
from lpc_apps.gateway.errors import GatewayError
from lpc_apps.gateway.headers import Headers, first
from lpc_apps.gateway.recording import Form
from lpc_apps.gateway.targets import CHAT, COMPLETIONS

SESSION_HEADER: Final = b"x-session-id"
"""Names the conversation to vLLM."""
PROMPT_BEGINNING: Final = 2048
"""Characters of a plain prompt by which its engine is chosen: later turns only add to it."""
DEEPEST: Final = 100
"""Levels of a body that is read: what goes deeper is the engine's to refuse."""
INLINE_BYTES: Final = 16 * 2**10
"""A longer body is read in a thread."""
_TOKEN: Final = re.compile(rb'"[^"]*"?|[,:\[{]')
"""Of JSON without escapes: a string, or a mark that comes with a value."""
ARGUMENTS: Final = {"vllm": "vllm_xargs", "sglang": "custom_params"}
"""The field of a body in which an engine takes arguments for plug-ins."""
DEFAULT_TTL_S: Final = 300.0
"""Of Anthropic's `cache_control`."""
_TTL: Final = re.compile(r"(\d{1,7})([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a completion.

    Attributes:
        body: its JSON.
        messages: of a chat, else none.
        prompt: of /v1/completions, where it is one text.
        form: how the answer is wanted.
        session: the conversation's name, where the request gives one.
        query: of the URL: what it says may be a key, or choose a model.
    """

    body: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    prompt: str | None
    form: Form
    session: str | None
    query: str = ""

    @property
    def cacheable(self) -> bool:
        """Whether it is of a shape that the sidecar can be asked about."""
        return bool(self.messages) or self.prompt is not None

    def question(self, tenant: str, scope: str) -> pb.Request:
        """Return what the sidecar is asked. Raises ValueError or TypeError where it cannot be said."""
        body = {**self.body, "url_query": self.query} if self.query else self.body
        return question(body, scope=scope, tenant=tenant)

    def conversation(self, session: str | None) -> predictor_pb2.Conversation | None:
        """Return what the predictor gets; None if it has no user."""
        if not self.messages:
            return predictor_pb2.Conversation(prompt=self.prompt or "", conversation_id=session or "")
        chat = [
            predictor_pb2.ChatMessage(role=str(message["role"]), content=text_of(message.get("content")))
            for message in self.messages
        ]
        if not any(message.role == "user" for message in chat):
            return None
        return predictor_pb2.Conversation(chat=predictor_pb2.ChatMessages(messages=chat), conversation_id=session or "")


def read(path: str, asked: Mapping[str, Any], session: str | None, query: str = "") -> Asked | None:
    """Return what a completion's body asks; None if it is not understood, or the path is another."""
    if path not in (CHAT, COMPLETIONS):
        return None
    try:
        messages: Sequence[Mapping[str, Any]] = ()
        prompt = None
        if path == CHAT:
            messages = asked["messages"]
            if not all(isinstance(message["role"], str) for message in messages):
                return None
        elif isinstance(asked.get("prompt"), str):
            prompt = asked["prompt"]
        options = asked.get("stream_options") or {}
        form = Form(asked.get("stream") is True, options.get("include_usage") is True)
        return Asked(asked, messages, prompt, form, session, query)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def is_deep(value: object, body: bytes) -> bool:
    """Whether the value of a body is nested more deeply than `DEEPEST`."""
    if body.count(b"{") + body.count(b"[") <= DEEPEST:
        return False
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for one in level for inner in _within(one)]
        if not level:
            return False
    return True


def _within(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def affinity(body: Mapping[str, Any], session: str | None, tenant: str) -> bytes:
    """Return by what the engine is chosen: the conversation's name, else how it begins, the same in all of its turns."""
    return digest("session", tenant, session) if session is not None else digest("beginning", tenant, *_beginning(body))


def _beginning(body: Mapping[str, Any]) -> list[object]:
    """Return the model, and what all turns of a conversation begin with: up to the user's first message."""
    said = body.get("messages") or body.get("input") or body.get("prompt")
    begins = said[:PROMPT_BEGINNING] if isinstance(said, str) else said
    if isinstance(said, list):
        until_user = (i for i, item in enumerate(said) if not isinstance(item, dict) or item.get("role") == "user")
        begins = said[: next(until_user, len(said)) + 1]
    return [*map(body.get, ("model", "system", "instructions")), begins]


def session_of(body: Mapping[str, Any], headers: Headers) -> str | None:
    """Return the conversation's name in vLLM's order: the body, the header, the extra arguments, also those of SGLang."""
    arguments = (text_at(body, (field, "session_id")) for field in ARGUMENTS.values())
    named = (text_at(body, ("session_id",)), first(headers, SESSION_HEADER), *arguments)
    return next((name for name in named if name), None)


def named_otherwise(body: Mapping[str, Any], headers: Headers) -> str | None:
    """Return a name made of what another engine or API reads: `conversation` of the Responses API, `prompt_cache_key`.

    It is of hexadecimal digits, as it will stand in a header field. Many conversations may share a `prompt_cache_key`.
    """
    named = (
        *(text_at(body, path) for path in (("conversation",), ("conversation", "id"), *NAMES) if path[-1] != SALT),
        *(first(headers, name) for name in (b"x-dynamo-session-id", b"x-multi-turn-session-id")),
    )
    conversation = next((name for name in named if name), None)
    if conversation is not None:
        return digest("conversation", conversation).hex()
    key = text_at(body, ("prompt_cache_key",))
    return None if key is None else digest("key", key, *_beginning(body)).hex()


def text_of(content: object) -> str:
    """Return the text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def states_of(asked: Asked, tenant: str) -> Sequence[bytes]:
    """Return the state of a conversation after each of its messages: digests, each of the one before and a message."""
    state = digest("conversation", tenant, asked.body.get("model"))
    states: list[bytes] = []
    for message in asked.messages:
        state = next_state(state, message)
        states.append(state)
    return states


def next_state(state: bytes, message: Mapping[str, Any]) -> bytes:
    """Return the state of a conversation after one more message."""
    # White space at the ends is what clients trim before they send an answer back.
    content = message.get("content")
    return digest(state.hex(), message["role"], content.strip() if isinstance(content, str) else content)


def digest(kind: str, *values: object) -> bytes:
    """Return a digest of values of JSON, which tells where each ends."""
    return blake2b(json.dumps([kind, *values], sort_keys=True).encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one body.

    Attributes:
        body: as the engine gets it.
        affinity: by which the engine is chosen.
        salt: that the engine gets with it.
        session: the conversation's name for the engine, where the client said it in a field that engines do not read.
        asked: the completion; None: it is not understood, or another request.
        question: for the caches; None: they are not asked.
        states: the conversation after each of its messages.
    """

    body: bytes
    affinity: bytes
    salt: str | None = None
    session: str | None = None
    asked: Asked | None = None
    question: pb.Request | None = None
    states: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads bodies.

    Attributes:
        tenants: salts and names.
        max_values: of JSON in one body.
        arguments: the field of a body in which engines take arguments for plug-ins, so that hints are sent on; None: they
            are not.
    """

    tenants: Tenants
    max_values: int
    arguments: str | None = None

    async def read(self, path: str, headers: Headers, body: bytes, query: str, tenant: str, scope: str | None) -> Reading:
        """Read a body. ``scope``: the caches are asked in it; None: they are not. Raises GatewayError (413)."""
        if len(body) <= INLINE_BYTES:
            return self._read(path, headers, body, query, tenant, scope)
        return await asyncio.to_thread(self._read, path, headers, body, query, tenant, scope)

    def _read(self, path: str, headers: Headers, body: bytes, query: str, tenant: str, scope: str | None) -> Reading:
        said = self._said(body)
        if said is None:
            return Reading(body, digest("other", tenant))
        given = session_of(said, headers)
        name = given or named_otherwise(said, headers)
        sent, salt = self.tenants.apply(tenant, *self._with_hints(said, body, name))
        session = None
        if not given and name is not None:
            session = self.tenants.session(tenant, name)
        asked = read(path, said, name, query)
        key = affinity(said, name, tenant)
        if asked is None:
            return Reading(sent, key, salt, session)
        question = None
        if scope is not None and asked.cacheable:
            # A body that the caches cannot be asked about may be one that the engine understands.
            with contextlib.suppress(ValueError, TypeError, KeyError):
                question = asked.question(tenant, scope)
        return Reading(sent, key, salt, session, asked, question, states_of(asked, tenant))

    def _with_hints(self, said: Mapping[str, Any], body: bytes, name: str | None) -> tuple[Mapping[str, Any], bytes]:
        """Return what a body says, and the body, with the hints that the client's own fields amount to. Its own hints stay.

        Args:
            name: the conversation's. SGLang reads it in its arguments alone.
        """
        seconds = retain_seconds(said) if self.arguments is not None else 0.0
        own = said.get(self.arguments or "") or {}
        if not isinstance(own, dict):
            return said, body
        hints: dict[str, object] = {"lpc_retain_seconds": seconds} if seconds else {}
        if name is not None and self.arguments == ARGUMENTS["sglang"]:
            hints["session_id"] = name
        if hints.keys() <= own.keys():
            return said, body
        said = {**said, str(self.arguments): {**hints, **own}}
        return said, json.dumps(said, separators=(",", ":")).encode()

    def _said(self, body: bytes) -> Mapping[str, Any] | None:
        """Return the object that a body holds; None if it holds none. Raises GatewayError (413)."""
        if values_exceed(body, self.max_values):
            raise GatewayError(413, f"the body has more than {self.max_values} values: send fewer")
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            return None
        return said if isinstance(said, dict) and not is_deep(said, body) else None


def values_exceed(body: bytes, most: int) -> bool:
    """Whether JSON has more than ``most`` commas, colons and opening brackets outside of its strings."""
    # In slices, since the other threads wait for each.
    slices = (body[at : at + INLINE_BYTES] for at in range(0, len(body), INLINE_BYTES))
    if sum(part.count(mark) for part in slices for mark in (b",", b":", b"[", b"{")) <= most:
        return False
    marks = strings = 0
    for token in _TOKEN.finditer(body.replace(b"\\\\", b"").replace(b'\\"', b"")):
        if token[0][:1] == b'"':
            strings += 1
        else:
            marks += 1
        # JSON has at most one string more than marks.
        if marks > most or strings > most + 1:
            return True
    return False


def retain_seconds(said: Mapping[str, Any]) -> float:
    """Return for how many seconds a body asks to keep its prompt; 0: it does not ask. What cannot be read asks for nothing."""
    asked = [_control(holder.get("cache_control")) for holder in _holders(said)]
    options = said.get("prompt_cache_options")
    asked.append(_ttl(options.get("ttl")) if isinstance(options, dict) else 0.0)
    asked.append(_ttl(said.get("prompt_cache_retention")))
    return max(asked)


def _holders(said: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Yield the objects of a body that may have a `cache_control`."""
    yield said
    if isinstance(said.get("nvext"), dict):
        yield said["nvext"]
    for name in ("tools", "system", "messages"):
        for item in _objects(said.get(name)):
            yield item
            yield from _objects(item.get("content"))


def _objects(value: object) -> Iterable[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def _control(control: object) -> float:
    if not isinstance(control, dict) or control.get("type") != "ephemeral":
        return 0.0
    return _ttl(control["ttl"]) if "ttl" in control else DEFAULT_TTL_S


def _ttl(value: object) -> float:
    found = _TTL.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) * _SECONDS[found[2]] if found else 0.0
