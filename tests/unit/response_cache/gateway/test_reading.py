"""Bodies: their limits, and which ones the gateway refuses."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from lpc.requests.rules import sure
from response_cache.gateway.clients import ANONYMOUS, NAMES, Tenants
from response_cache.gateway.errors import GatewayError
from response_cache.gateway.request import ARGUMENTS, INLINE_BYTES, Reader, Reading, values_exceed
from response_cache.gateway.targets import CHAT
from tests.nightly import EXAMPLES

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab,:[]{}"\\\n☕'),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('ab,:"\\'), inner, max_size=5),
    max_leaves=30,
)


def marks(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + max(0, len(value) - 1) + sum(map(marks, value.values()))
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(marks, value))
    return 0


@given(JSON, st.booleans())
def test_marks_in_strings_do_not_count_as_values(value: Any, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert not values_exceed(body, marks(value))
    assert marks(value) == 0 or values_exceed(body, marks(value) - 1)


async def read(body: bytes, most: int = 1000) -> Reading:
    return await Reader(Tenants(b"k"), most).read(CHAT, [], body, "", ANONYMOUS, "default")


@pytest.mark.parametrize("dense", ["[],", "1,", "{},", '"",', '{"a":1},'])
async def test_a_body_of_many_values_is_refused(dense: str) -> None:
    body = '{"model":"m","messages":[{"role":"user","content":"' + "text, text: " * 1000 + '"}],"x":[' + dense * 1000 + "1]}"
    with pytest.raises(GatewayError, match="values: send fewer"):
        await read(body.encode())
    assert (await read(body.replace(dense * 1000, dense).encode())).question is not None


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/tokenize", "/v1/score"])
async def test_token_ids_count_less_than_other_values(path: str) -> None:
    def reader() -> Reader:
        return Reader(Tenants(b"k"), 1000)

    ids = [15_234] * 14_000
    for fields in ({"input": ids}, {"prompt": ids}, {"tokens": ids}, {"input": [ids[:3500]] * 4}):
        body = json.dumps({"model": "m", **fields}).encode()
        assert (await reader().read(path, [], body, "", "t", None)).body
    for dense, count in (("1.5,", 1000), ('"1",', 1000), ("[1],", 500), ("1,[],", 500), ('"[1,1,1,1]",', 1000), ("1,", 16_000)):
        body = b'{"input":[' + dense.encode() * count + b"1]}"
        with pytest.raises(GatewayError, match="values: send fewer"):
            await reader().read(path, [], body, "", "t", None)


async def test_a_long_body_is_read_like_a_short_one() -> None:
    for text in ("a", "a" * INLINE_BYTES):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
        reading = await read(body)
        assert reading.body == body and reading.question is not None
        assert reading.question.messages[0].content == text


DEEP = b'{"x": ' + b"[" * 200 + b"]" * 200 + b"}"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"nothing", b'"text"', b"null", b"[" * 900, b'{"a":' * 20_000, DEEP, b'{"a": 1} {}', b'{"a": 1}\x00'),
        *(b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": ' + b"1" * 5000 + b"}", b'{"a": 1,}', b"{'a': 1}"),
        *(b'{"a": 1, "a": 2}', b'{"cache_salt": "a", "cache\\u005fsalt": "b"}', b'{"x": [{"nvext": {}, "nvext": {}}]}'),
        *(json.dumps({"a": "b"}).encode(coding) for coding in ("utf-16", "utf-16-le", "utf-32", "utf-32-be")),
        *(b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}', b'{"a": "\xc0\xaf"}', b'{"a": "\n"}', b"// a\n{}"),
    ],
    ids=lambda body: repr(body[:20]),
)
@pytest.mark.parametrize("tenant", [ANONYMOUS, "t"])
async def test_a_body_that_parsers_could_read_differently_is_refused(body: bytes, tenant: str) -> None:
    with pytest.raises(GatewayError) as caught:
        await Reader(Tenants(b"k"), 100_000).read(CHAT, [], body, "", tenant, None)
    assert caught.value.status == 400


@pytest.mark.parametrize("declared", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"])
async def test_a_body_that_is_not_declared_as_json_in_utf_8_is_refused(declared: str) -> None:
    for value in (declared, "application/json; charset=utf-16", 'application/json;charset="latin-1"', "application/jsonp"):
        with pytest.raises(GatewayError) as caught:
            await Reader(Tenants(b"k"), 1000).read(CHAT, [(b"content-type", value.encode())], b"{}", "", "t", None)
        assert caught.value.status == 415
    for value in ("application/json", 'Application/JSON; Charset="UTF-8"', "application/vnd.api+json", ""):
        assert (await Reader(Tenants(b"k"), 1000).read(CHAT, [(b"content-type", value.encode())], b"{}", "", "t", None)).body


async def test_a_byte_order_mark_is_removed() -> None:
    assert (await read(b'\xef\xbb\xbf{"a": 1}')).body == b'{"a": 1}'


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
NAMED = st.sampled_from(
    ["cache_salt", "Cache_Salt", "CACHE_SALT", "session_id", "Session_Id", "nvext", "vllm_xargs", "a", "messages"]
)
NESTED = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(NAMED, inner), max_size=4), max_leaves=12
)


def written(value: Any, draw: Callable[[Any], Any]) -> str:
    """Return JSON with repetitions, escaped names, blanks and odd numbers. An object is a list of pairs."""
    if isinstance(value, list) and all(isinstance(item, tuple) for item in value):
        names = [json.dumps(name).replace("_", draw(st.sampled_from(["_", "\\u005f"]))) for name, _ in value]
        said = (f"{name}{draw(BLANKS)}:{written(inner, draw)}" for name, (_, inner) in zip(names, value, strict=True))
        return "{" + ",".join(said) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(item, draw) for item in value) + "]"
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


BLANKS = st.sampled_from(["", " ", "\n", "\t "])
ENDS = st.sampled_from(["", "", "", " ", "\x00", "{}", ",", "1"])
CODINGS = st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"])
OWN = "the-clients-own"


@st.composite
def bodies(draw: Callable[[Any], Any]) -> bytes:
    pairs = draw(st.lists(st.tuples(NAMED, NESTED | st.just(OWN)), max_size=6))
    text = draw(BLANKS) + written(pairs, draw) + draw(ENDS)
    return text.encode(draw(CODINGS), "replace")


def all_readings(body: bytes) -> Iterator[Any]:
    """Yield what different parsers read: strict, the first or the last of equal names, names without case, any encoding."""
    text = body.decode(json.detect_encoding(body), "replace")
    yield json.loads(body.decode())
    yield json.JSONDecoder(strict=False).raw_decode(text.lstrip())[0]
    yield json.loads(text, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    yield json.loads(text, object_pairs_hook=lambda pairs: {name.lower(): value for name, value in pairs})
    yield json.loads(text, object_pairs_hook=lambda pairs: {name.lower(): value for name, value in reversed(pairs)})


def own_at(fields: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        fields = fields.get(name) if isinstance(fields, dict) else None
    return fields == OWN


@given(bodies())
@settings(max_examples=EXAMPLES)
@example(b'{"cache_salt": "the-clients-own", "Cache_Salt": "the-clients-own"}')
@example(b'{"nvext": {"cache_salt": "the-clients-own"}, "nvext": {}}')
def test_every_parser_sees_the_tenants_salt_in_what_is_forwarded(body: bytes) -> None:
    tenants = Tenants(b"k")
    try:
        forwarded = asyncio.run(Reader(tenants, 1000).read(CHAT, [], body, "", "t", None)).body
    except GatewayError as error:
        event(f"refused: {error.status}")
        return
    event("forwarded")
    sent_by_client = json.loads(body.decode("utf-8-sig"))
    for fields in all_readings(forwarded):
        assert fields["cache_salt"] == tenants.salt("t", sent_by_client.get("cache_salt"))
        assert not any(own_at(fields, path) for path in (("cache_salt",), *NAMES))


FIELDS = [
    *("role", "content", "text", "type", "tool_calls", "name", "model", "session_id", "cache_control", "ttl", "metadata"),
    *("user_id", "user", "conversation", "id", "prompt_cache_key", "nvext", "vllm_xargs", "custom_params", "function"),
    *("arguments", "parameters", "strict", "image_url", "url", "input_audio", "reasoning_content"),
]
BODIES = [
    *FIELDS,
    *("messages", "input", "prompt", "system", "instructions", "tools", "functions", "stream", "previous_response_id"),
    *("prompt_cache_options", "prompt_cache_retention", "response_format", "tool_choice", "documents", "n", "stop"),
]
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["user", "assistant", "text", "function"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=25,
)
PATHS = [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"]


@settings(max_examples=EXAMPLES)
@given(
    st.dictionaries(st.sampled_from(BODIES), ANYTHING, max_size=8),
    st.sampled_from(PATHS),
    st.sampled_from(["any", "vllm", "sglang"]),
    st.sampled_from([None, *ARGUMENTS.values()]),
)
@example({"messages": [{"role": []}]}, CHAT, "any", None)
async def test_no_body_ends_in_anything_but_a_reading_or_a_clear_refusal(
    fields: dict[str, Any], path: str, kind: str, arguments: str | None
) -> None:
    reader = Reader(Tenants(b"k"), 100_000, arguments, lambda: sure(kind))
    try:
        assert (await reader.read(path, [], json.dumps(fields).encode(), "", "t", "default")).body
    except GatewayError as error:
        assert 400 <= error.status < 500
