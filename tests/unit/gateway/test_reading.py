"""Bodies: their limits, and which ones the gateway leaves to the engine."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc_apps.gateway.clients import ANONYMOUS, Tenants
from lpc_apps.gateway.errors import GatewayError
from lpc_apps.gateway.request import INLINE_BYTES, Reader, Reading, values_exceed
from lpc_apps.gateway.targets import CHAT

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


async def test_a_long_body_is_read_like_a_short_one() -> None:
    for text in ("a", "a" * INLINE_BYTES):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
        reading = await read(body)
        assert reading.body == body and reading.question is not None
        assert reading.question.messages[0].content == text


async def test_a_body_that_is_not_an_object_or_is_deeply_nested_goes_to_the_engine_unchanged() -> None:
    deep = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "x": ' + b"[" * 200 + b"]" * 200 + b"}"
    for body in (b"", b"[]", b"nothing", b"[" * 900, deep):
        reading = await read(body)
        assert (reading.body, reading.question) == (body, None)
