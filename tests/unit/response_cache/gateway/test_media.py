"""Names of media in bodies: the engine gets another one for each tenant, or the gateway refuses the body."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from response_cache.gateway.clients import ANONYMOUS, Tenants
from response_cache.gateway.errors import GatewayError

TENANTS = Tenants(b"k" * 32)
TEXT = {"type": "text", "text": "What is it?"}
URL = {"url": "http://a/b.png"}


def part(**more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": dict(URL), "uuid": "cat", **more}


def turn(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": [TEXT, *parts], **more}


PARTS = {
    "image": part(),
    "image without data": part(image_url=None),
    "image as text": part(image_url="http://a/b.png"),
    "image without type": {"image_url": "http://a/b.png", "uuid": "cat"},
    "another type": part(type="text"),
    "PIL image": {"image_pil": None, "uuid": "cat"},
    "embeds": {"type": "image_embeds", "image_embeds": None, "uuid": "cat"},
    "audio embeds": {"type": "audio_embeds", "audio_embeds": None, "uuid": "cat"},
    "video": {"type": "video_url", "video_url": URL, "uuid": "cat"},
    "audio": {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}, "uuid": "cat"},
    "Responses' image": {"type": "input_image", "image_url": "http://a/b.png", "uuid": "cat"},
    "Anthropic's image": {"type": "image", "source": {"type": "url", **URL, "uuid": "cat"}, "uuid": "cat"},
    "vLLM's generate": {"type": "image_url", **URL, "uuid": "cat"},
    "a kind of a later release": {"hologram": "http://a/b", "uuid": "cat"},
    "number": part(uuid=7),
    "object": part(uuid={"a": 1}),
    "empty": part(uuid=""),
    "upper case": {"type": "image_url", "image_url": dict(URL), "UUID": "cat"},
}
"""Content parts of vLLM 0.32 (`ChatCompletionContentPartParam`) and of the APIs that it translates."""


def bodies(one: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield bodies of the proxied paths that hold a content part, by vLLM 0.32's and SGLang 0.5.23's protocols."""
    yield "chat", {"messages": [{"role": "system", "content": [one]}, turn(one)]}
    yield "batch of chats", {"messages": [[turn(one)], [turn(one)]]}
    yield "message with one part", {"messages": [{"role": "user", "content": one}]}
    yield "completion", {"prompt": [turn(one)]}
    yield "embeddings of messages", {"input": [turn(one)]}
    yield "embeddings of chats", {"input": [[turn(one)], [turn(one)]]}
    yield "embeddings of parts", {"input": [one]}
    yield "Cohere's embeddings", {"inputs": [{"content": [one]}], "images": [one]}
    yield "plug-in's data", {"data": {"data": one}}
    for one_side, other_side in (("data_1", "data_2"), ("queries", "documents"), ("queries", "items"), ("text_1", "text_2")):
        yield one_side, {one_side: {"content": [one]}, other_side: "a"}
        yield other_side, {one_side: "a", other_side: [{"content": [one]}, "b"]}
        yield f"{one_side} and {other_side}", {one_side: [{"content": [one]}], other_side: [{"content": [one]}]}
    yield "rerank's query", {"query": {"content": [one]}, "documents": ["a"]}
    yield "rerank's documents", {"query": "a", "documents": [{"content": [one]}]}
    yield "rerank's documents beside messages", {"query": "a", "documents": {"content": [one]}, "messages": []}
    yield "SGLang's rerank", {"query": [one], "documents": [[TEXT, one], "b"]}
    yield "documents' own", {"query": "a", "documents": [{"type": "doc", "multi_modal": [one]}]}
    yield "Responses", {"input": [turn(one), {"type": "function_call_output", "call_id": "1", "output": [one]}]}
    yield "Responses' earlier messages", {"input": "a", "previous_input_messages": [turn(one)]}
    yield "Responses' prompt", {"prompt": {"id": "p", "variables": {"image": one}}}
    yield "Messages", {"system": [one], "messages": [turn({"type": "tool_result", "content": [one, {"content": [one]}]})]}
    yield "vLLM's generate", {"token_ids": [1], "content_parts": [one]}
    yield "extra_body", {"messages": [], "extra_body": {"messages": [turn(one)], "input": [turn(one)]}}
    yield "an unknown field", {"nvext": {"media": [one]}, "later": {"field": [[one]]}}
    deep: Any = one
    for _ in range(40):
        deep = {"content": [deep]}
    yield "deep", {"messages": [deep]}


WHERE = list(dict(bodies(None)))
HASHED = (
    {"image_url": {**URL, "content_hash": "sha256:" + "0" * 64}},
    {"image_url": {**URL, "Content_Ha\u017fh": "sha256:" + "0" * 64}},
    {"content_hash": "sha256:" + "0" * 64},
    {"mm_hash": "ab"},
    {"format": "processor_output", "hash": 7},
    {"format": "precomputed_embedding", "feature": [[0.5]], "pad_value": 3},
)


def found(value: Any) -> list[Any]:
    """Return all values of `uuid` below the top level, in any case."""
    if isinstance(value, list):
        return [name for item in value for name in found(item)]
    if not isinstance(value, dict):
        return []
    return [*(one for name, one in value.items() if name.lower() == "uuid"), *found(list(value.values()))]


def sent(tenant: str, fields: dict[str, Any]) -> Any:
    """Return the fields of the body that an engine gets."""
    return json.loads(TENANTS.apply(tenant, fields, json.dumps(fields).encode()))


@pytest.mark.parametrize("where", WHERE)
def test_each_tenant_has_its_own_names_of_media(where: str) -> None:
    for what, one_part in PARTS.items():
        fields = dict(bodies(copy.deepcopy(one_part)))[where]
        one, two, again = (found(sent(tenant, fields)) for tenant in ("t", "u", "t"))

        assert len(one) == len(found(fields)) > 0, what
        assert one == again and not set(one) & set(two), what
        assert all(isinstance(name, str) and len(name) == 64 for name in one), what
        assert sent(ANONYMOUS, fields) == fields


@pytest.mark.parametrize("where", WHERE)
def test_a_hash_of_media_that_a_client_states_is_refused(where: str) -> None:
    for named in HASHED:
        fields = dict(bodies({"type": "image_url", "image_url": URL, **named}))[where]
        with pytest.raises(GatewayError, match=r"leave out the field .*: it names media") as refused:
            sent("t", fields)
        assert refused.value.status == 400, named
        assert sent(ANONYMOUS, fields) == fields


@pytest.mark.parametrize("name", ["mm_hashes", "mm_content_hashes", "multi_modal_uuids", "mm_uuids", "MM_HASHES"])
@pytest.mark.parametrize("holder", [(), ("extra_body",), ("nvext",), ("features",)], ids=".".join)
def test_lists_of_media_names_are_refused(name: str, holder: tuple[str, ...]) -> None:
    fields: dict[str, Any] = {name: {"image": ["cat"]}}
    for outer in holder:
        fields = {outer: fields}
    with pytest.raises(GatewayError, match=f"leave out the field {name}"):
        sent("t", fields)


def test_an_absent_name_is_neither_replaced_nor_refused() -> None:
    fields = {"messages": [turn({**part(uuid=None), "content_hash": None})], "mm_hashes": None}
    assert {**sent("t", fields), "cache_salt": None} == {**fields, "cache_salt": None}


def test_parts_other_than_media_stay_as_they_are() -> None:
    """Tools, schemas, arguments and documents of text are part of the prompt or of the answer."""
    schema = {"type": "object", "properties": {"uuid": {"type": "string"}, "hash": {"type": "string"}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"uuid": "4", "content_hash": "5"}}}
    fields: dict[str, Any] = {
        "uuid": "of the request",
        "hash": "of the request",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}, {"name": "g", "input_schema": schema}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        "structured_outputs": {"json": schema},
        "guided_json": schema,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "text": {"format": {"type": "json_schema", "schema": schema}},
        "nvext": {"guided_json": schema},
        "metadata": {"uuid": "1", "mm_hashes": "2"},
        "chat_template_kwargs": {"uuid": "1"},
        "vllm_xargs": {"uuid": "1"},
        "documents": [{"title": "a", "text": "b", "uuid": "3", "hash": "4"}],
        "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"uuid": "4"}}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "system", "content": [{"type": "tool_addition", "tool": {"definition": {"input_schema": schema}}}]},
        ],
        "input": [{"type": "function_call", "arguments": {"uuid": "4"}}, {"type": "custom_tool_call", "input": {"uuid": "1"}}],
    }
    said = sent("t", fields)
    assert said.pop("cache_salt") and said == fields


def test_a_body_without_media_names_changes_only_in_its_salt() -> None:
    fields = {"messages": [turn({"type": "image_url", "image_url": URL})], "input": [1, 2, [3]]}
    body = json.dumps(fields, indent=2).encode()
    changed = TENANTS.apply("t", fields, body)
    assert changed.endswith(body[1:]) and json.loads(changed) == {**fields, "cache_salt": TENANTS.salt("t")}
