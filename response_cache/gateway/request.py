"""Reads the JSON body of a request: the conversation's name, the caches' request, and how long the prompt should be kept.

Long bodies are read in a thread. The C code of `json` holds the interpreter's lock while it parses, so the number of values is
limited first.

Clients state how long their prompt should be kept in fields of several APIs:

- Anthropic: `cache_control` of the body, or of a block in tools, system or messages: `{"type": "ephemeral", "ttl": "1h"}`;
- NVIDIA Dynamo: `nvext.cache_control`, the same object, whose `ttl` may also be `90s` or `30m` (ai-dynamo/dynamo#6213);
- OpenAI: `prompt_cache_options.ttl`, and `prompt_cache_retention` (`24h`; `in_memory` requests nothing).

The longest time counts, and for the whole prompt, because a plug-in has no breakpoints. The engine limits the effect by
LPC_HINTS_SHARE.
"""

import asyncio
import codecs
import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.requests.possibly import beginning, of_claude_code, turns
from lpc.requests.repair.reading import Read, read
from lpc.requests.rules import ANY
from lpc.requests.surely import chat
from lpc.wire.headers import Headers
from lpc_apps.routing.prompt import prompt_of
from response_cache.bodies import question
from response_cache.gateway.choice import Route
from response_cache.gateway.clients import NAMES, SALT, Tenants, text_at
from response_cache.gateway.errors import GatewayError
from response_cache.gateway.headers import first
from response_cache.gateway.repairing import Group, Repairing
from response_cache.gateway.targets import CHAT, COMPLETIONS, PROMPTS, RESPONSES

SESSION_HEADER: Final = b"x-session-id"
"""Names the conversation to vLLM."""
CLAUDE_SESSION: Final = b"x-claude-code-session-id"
"""Header field of a session of Claude Code, which its agents share."""
OTHER_SESSIONS: Final = (
    *(b"x-dynamo-session-id", b"x-multi-turn-session-id", b"x-session-affinity"),  # Dynamo, TensorRT-LLM and OpenCode
    *(b"session_id", b"session-id", b"conversation_id"),  # Codex
)
"""Header fields in which clients name a conversation, other than vLLM's."""
MAX_DEPTH: Final = 100
"""Nesting depth up to which a body is read."""
_JSON_TYPE: Final = re.compile(rb"application/[a-z0-9!#$&^_.+-]+\+json")
INLINE_BYTES: Final = 16 * 2**10
"""A longer body is read in a thread."""
_TOKEN: Final = re.compile(rb'"[^"]*"?|\[[0-9, \t\r\n-]*\]|[,:\[{]')
"""Of JSON without escapes: a string, a list of whole numbers, or a mark that precedes a value."""
NUMBERS: Final = 16
"""Whole numbers in a list that count as one value: each is parsed in 60 ns."""
ARGUMENTS: Final = {"vllm": "vllm_xargs", "sglang": "custom_params"}
"""The field of a body in which each engine takes arguments for plug-ins."""
USER_FIELDS: Final = (("safety_identifier",), ("user",), ("metadata", "user_id"))
"""Paths in a body of a user's name: OpenAI's present and former field, and Anthropic's."""
DEFAULT_TTL_S: Final = 300.0
"""Default `ttl` of Anthropic's `cache_control`."""
_TTL: Final = re.compile(r"(\d{1,7})([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read from one body.

    Attributes:
        body: body for the engine.
        route: chooses the engine.
        session: name of the conversation for X-Session-ID, if the client sent it in a field that engines do not read.
        question: request to the caches; None: they are not asked.
        streamed: whether the client requests a stream.
        continues: id of the answer that the request continues.
        repaired: what became of a request that a repair rule matches; None: none does.
    """

    body: bytes
    route: Route
    session: str | None = None
    question: pb.Request | None = None
    streamed: bool = False
    continues: str | None = None
    repaired: Group | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads bodies.

    Attributes:
        tenants: salts and names of conversations.
        max_values: limit on the JSON values of one body.
        arguments: field of a body in which the engines take hints; None: hints are not forwarded.
        rules: returns those by which the engines read two bodies alike (`lpc.requests.rules.sure`).
        priorities: whether the gateway's queue reads priorities, in place of the engines.
        repairing: repairs bodies; None: they stay as they are.
    """

    tenants: Tenants
    max_values: int
    arguments: str | None = None
    rules: Callable[[], frozenset[str]] = lambda: ANY
    priorities: bool = False
    repairing: Repairing | None = None

    async def read(
        self, path: str, headers: Headers, body: bytes, query: str, tenant: str, scope: str | None, own_scope: str = ""
    ) -> Reading:
        """Read a body.

        Args:
            scope: that of the caches; None if they are not asked.
            own_scope: that of the request, whether or not the caches are asked.

        Raises GatewayError (400, 413, 415).
        """
        check_type(headers)
        if len(body) <= INLINE_BYTES:
            return self._read(path, headers, body, query, tenant, scope, own_scope)
        return await asyncio.to_thread(self._read, path, headers, body, query, tenant, scope, own_scope)

    def _read(
        self, path: str, headers: Headers, body: bytes, query: str, tenant: str, scope: str | None, own_scope: str
    ) -> Reading:
        body = body.removeprefix(codecs.BOM_UTF8)
        # Chats have no token ids.
        parsed = parse(body, self.max_values, token_ids=path != CHAT)
        priority = 0
        if self.priorities and path in PROMPTS and type(parsed.fields.get("priority")) is int:
            # It orders the tenant's own held requests. In an engine it would order those of all tenants.
            priority = parsed.fields.pop("priority")
            body = json.dumps(parsed.fields, separators=(",", ":")).encode()
            parsed = parse(body, self.max_values, token_ids=path != CHAT)
        fields: Mapping[str, Any] = parsed.fields
        known_to_engines = session_of(fields, headers)
        # What the engine reads, and that in a form in which all turns begin alike.
        named, group = fields, None
        if self.repairing is not None:
            fields, body, named, group = self.repairing.repair(parsed, body, own_scope, partial(_key, headers, tenant))
        others = None if known_to_engines else names_in_other_fields(named, headers)
        name = known_to_engines if others is None else others.conversation
        session = None if others is None else self.tenants.session(tenant, others.conversation)
        asked = None if scope is None else question_of(path, fields, query, tenant, scope, self.rules())
        sent = self.tenants.apply(tenant, *self._with_hints(fields, body, name))
        key = affinity(named, known_to_engines if others is None else others.engine, tenant)
        continues = None if known_to_engines else text_at(fields, ("previous_response_id",))
        streamed = fields.get("stream") is True
        # Many conversations may begin alike, so a beginning is no name. But an engine keeps the answers of the responses API,
        # and that begins a stream before it computes anything (vLLM).
        follows = key if name is not None or path == RESPONSES else None
        prompt = prompt_of(digest("scope", tenant, fields.get("model")), turns(named), follows) if path in PROMPTS else None
        route = Route(key, prompt, streamed and path != RESPONSES, priority=priority)
        return Reading(sent, route, session, asked, streamed, continues, group)

    def _with_hints(self, fields: Mapping[str, Any], body: bytes, name: str | None) -> tuple[Mapping[str, Any], bytes]:
        """Return fields and body with the hints that other APIs' fields amount to, and the user. The client's own stay.

        ``name`` is the conversation's, which SGLang reads only among these arguments.
        """
        seconds = retain_seconds(fields) if self.arguments is not None else 0.0
        own = fields.get(self.arguments or "") or {}
        if not isinstance(own, dict):
            return fields, body
        hints: dict[str, object] = {"lpc_retain_seconds": seconds} if seconds else {}
        if name is not None and self.arguments == ARGUMENTS["sglang"]:
            hints["session_id"] = name
        if self.arguments is not None and (user := user_of(fields)) is not None:
            hints["user_id"] = user
        if hints.keys() <= own.keys():
            return fields, body
        fields = {**fields, str(self.arguments): {**hints, **own}}
        return fields, json.dumps(fields, separators=(",", ":")).encode()


def check_type(headers: Headers) -> None:
    """Raise GatewayError (415) unless a body is declared as JSON in UTF-8, or not declared."""
    for value in (value.lower() for name, value in headers if name == b"content-type"):
        kind, *parameters = (part.strip() for part in value.split(b";"))
        charsets = {
            part.partition(b"=")[2].strip(b' "') for part in parameters if part.partition(b"=")[0].strip() == b"charset"
        }
        if not (kind in (b"", b"application/json") or _JSON_TYPE.fullmatch(kind)) or not charsets <= {b"utf-8", b"us-ascii"}:
            raise GatewayError(415, "send the body as JSON in UTF-8, with Content-Type: application/json")


def parse(body: bytes, max_values: int, *, token_ids: bool = False) -> Read:
    """Return the JSON object of a body. All parsers must read the same in it, because the engine has another one.

    ``token_ids``: `NUMBERS` whole numbers of a list count as one value.

    Raises GatewayError: 413 if it has too many values. 400 if it is not one JSON object in UTF-8, names a field twice, has
    numbers that are not finite or too long, or is nested too deeply.
    """
    if values_exceed(body, max_values, NUMBERS if token_ids else 1):
        raise GatewayError(413, f"the body has more than {max_values} values: send fewer")
    try:
        found = read(body.decode(), _DECODER)
    except (ValueError, RecursionError) as error:
        raise GatewayError(
            400, "the body must be one JSON object in UTF-8, without NaN, infinity or numbers of thousands of digits"
        ) from error
    if is_deep(found.fields, body):
        raise GatewayError(400, f"the body is nested more deeply than {MAX_DEPTH} levels: send a flatter one")
    return found


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise GatewayError(400, "an object in the body names a field twice: send each field once")
    return fields


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError
    return number


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_without_repetition, parse_float=_finite, parse_constant=_refuse_constant)


def question_of(
    path: str, fields: Mapping[str, Any], query: str, tenant: str, scope: str, rules: frozenset[str] = ANY
) -> pb.Request | None:
    """Return the caches' request for a completion with messages or one text; None for any other request.

    A chat is in the form of its engines, so that bodies that they read alike are one request. The sidecar applies the rules of
    `ANY` itself. The query is part of it, because it may contain a key or choose a model.
    """
    if not (fields.get("messages") if path == CHAT else path == COMPLETIONS and isinstance(fields.get("prompt"), str)):
        return None
    if path == CHAT and rules != ANY:
        fields = chat(fields, rules)
    # The engine may accept a body that the caches cannot represent.
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        return question({**fields, "url_query": query} if query else fields, scope=scope, tenant=tenant)
    return None


def _key(headers: Headers, tenant: str, fields: Mapping[str, Any]) -> bytes:
    """Return the key of a conversation: of its name, else of its beginning."""
    name = session_of(fields, headers)
    others = None if name else names_in_other_fields(fields, headers)
    return affinity(fields, name if others is None else others.conversation, tenant)


def affinity(fields: Mapping[str, Any], session: str | None, tenant: str) -> bytes:
    """Return the key that chooses the engine: the conversation's name, else its beginning, which all its turns share."""
    return digest("session", tenant, session) if session is not None else digest("beginning", tenant, beginning(fields))


def session_of(fields: Mapping[str, Any], headers: Headers) -> str | None:
    """Return the conversation's name in vLLM's order of precedence: body, header, extra arguments (also SGLang's)."""
    arguments = (text_at(fields, (field, "session_id")) for field in ARGUMENTS.values())
    names = (text_at(fields, ("session_id",)), first(headers, SESSION_HEADER), *arguments)
    return next((name for name in names if name), None)


class FieldNames(NamedTuple):
    """Names of a conversation that a client has sent in fields which engines do not read, in hexadecimal digits.

    Attributes:
        engine: chooses the engine. The agents of one session of Claude Code share it.
        conversation: the conversation's own.
    """

    engine: str
    conversation: str


def names_in_other_fields(fields: Mapping[str, Any], headers: Headers) -> FieldNames | None:
    """Return the names from the fields of other engines, APIs and clients; None if there is none.

    Many conversations may share a `prompt_cache_key`, and agents a session of Claude Code, so what they begin with
    distinguishes them: as the engines read it, so that no turn of a conversation has another name.
    """
    names = (
        *(text_at(fields, path) for path in (("conversation",), ("conversation", "id"), *NAMES) if path[-1] != SALT),
        *(first(headers, name) for name in OTHER_SESSIONS),
    )
    conversation = next((name for name in names if name), None)
    if conversation is not None:
        name = digest("conversation", conversation).hex()
        return FieldNames(name, name)
    _, session = of_claude_code(text_at(fields, ("metadata", "user_id")))
    if session := first(headers, CLAUDE_SESSION) or session:
        return FieldNames(digest("session", session).hex(), digest("agent", session, beginning(fields)).hex())
    key = text_at(fields, ("prompt_cache_key",))
    if key is None:
        return None
    name = digest("key", key, beginning(fields)).hex()
    return FieldNames(name, name)


def user_of(fields: Mapping[str, Any]) -> str | None:
    """Return the name of the user in a body, from the fields of OpenAI's APIs and of Anthropic's."""
    name = next((name for path in USER_FIELDS if (name := text_at(fields, path))), None)
    return of_claude_code(name)[0]


def digest(kind: str, *values: object) -> bytes:
    """Return a digest of JSON values. Different lists of values have different digests."""
    return blake2b(json.dumps([kind, *values], sort_keys=True).encode(), digest_size=16).digest()


def values_exceed(body: bytes, most: int, numbers: int = 1) -> bool:
    """Return whether JSON has more than ``most`` commas, colons and opening brackets outside of its strings.

    Of the commas of a list of whole numbers, ``numbers`` count as one.
    """
    # In slices, because all other threads wait during each count.
    slices = (body[at : at + INLINE_BYTES] for at in range(0, len(body), INLINE_BYTES))
    if sum(part.count(mark) for part in slices for mark in (b",", b":", b"[", b"{")) <= most:
        return False
    marks, strings = 0.0, 0
    for token in _TOKEN.finditer(body.replace(b"\\\\", b"").replace(b'\\"', b"")):
        if token[0][:1] == b'"':
            strings += 1
        else:
            marks += 1 + token[0].count(b",", 1) / numbers
        # JSON has at most one string more than marks.
        if marks > most or strings > most + 1:
            return True
    return False


def is_deep(value: object, body: bytes) -> bool:
    """Return whether the value of a body is nested more deeply than `MAX_DEPTH`."""
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for one in level for inner in _children(one)]
        if not level:
            return False
    return True


def _children(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def retain_seconds(fields: Mapping[str, Any]) -> float:
    """Return for how many seconds a body asks to keep its prompt. An absent or invalid time counts as 0."""
    times = [_control_s(holder.get("cache_control")) for holder in _holders(fields)]
    options = fields.get("prompt_cache_options")
    times.append(_ttl_s(options.get("ttl")) if isinstance(options, dict) else 0.0)
    times.append(_ttl_s(fields.get("prompt_cache_retention")))
    return max(times)


def _holders(fields: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Yield the objects of a body that may have a `cache_control`."""
    yield fields
    if isinstance(fields.get("nvext"), dict):
        yield fields["nvext"]
    for name in ("tools", "system", "messages"):
        for item in _objects(fields.get(name)):
            yield item
            yield from _objects(item.get("content"))


def _objects(value: object) -> Iterable[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def _control_s(control: object) -> float:
    if not isinstance(control, dict) or control.get("type") != "ephemeral":
        return 0.0
    return _ttl_s(control["ttl"]) if "ttl" in control else DEFAULT_TTL_S


def _ttl_s(value: object) -> float:
    found = _TTL.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) * _SECONDS[found[2]] if found else 0.0
