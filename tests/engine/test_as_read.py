"""The rules of what vLLM reads of a chat, run through its own preprocessing: a release that changes one is noticed."""

import asyncio
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from vllm.config import ModelConfig, VllmConfig
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.renderers.deepseek_v4 import DeepseekV4Renderer
from vllm.renderers.deepseek_v32 import DeepseekV32Renderer
from vllm.renderers.hf import HfRenderer
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.tokenizers.deepseek_v4 import get_deepseek_v4_tokenizer
from vllm.tokenizers.deepseek_v32 import get_deepseek_v32_tokenizer
from vllm.tokenizers.registry import cached_tokenizer_from_config

from lpc.requests.harmony import definition
from lpc.requests.rules import NULL_COUNTS, RULES
from lpc_apps.tiny_llama import build
from tests import as_rendered
from tests.as_read import (
    PAIRS,
    REFUSED,
    ROWS,
    TEMPLATES,
    TOOL,
    USER,
    Body,
    body,
    calling,
    counted,
    in_part,
    key,
    refuses_null,
    result,
)
from tests.client_behaviours import BEHAVIOURS, MESSAGES, RESPONSES

HARMONY = "harmony"
"""gpt-oss has no template in vLLM."""
DEEPSEEK: Final = {
    "DeepSeek V3.2": (DeepseekV32Renderer, get_deepseek_v32_tokenizer),
    "DeepSeek V4": (DeepseekV4Renderer, get_deepseek_v4_tokenizer),
}
"""Models whose prompts vLLM writes without a template."""
ALL = (*TEMPLATES, HARMONY, *DEEPSEEK)
IN_VLLM = [rule for rule in RULES if "vllm" in rule.versions]


class Renderer:
    """vLLM's preprocessing of chats, without a model."""

    names = ALL

    def __init__(self, folder: Path, templates: Mapping[str, str] = TEMPLATES) -> None:
        model = ModelConfig(model=str(build(folder, shape={"max_position_embeddings": 100_000})))
        renderer = HfRenderer(VllmConfig(model_config=model), cached_tokenizer_from_config(model))
        self._by_template = {name: self._online(model, renderer, template) for name, template in templates.items()}
        self._by_template[HARMONY] = self._online(model, renderer, None)
        self._by_template[HARMONY].use_harmony = True
        for name, (kind, wrapped) in DEEPSEEK.items():
            written = kind(VllmConfig(model_config=model), wrapped(cached_tokenizer_from_config(model)))
            self._by_template[name] = self._online(model, written, None)

    @staticmethod
    def _online(model: Any, renderer: Any, template: str | None) -> OnlineRenderer:
        return OnlineRenderer(
            model,
            renderer,
            request_logger=None,
            chat_template=template,
            chat_template_content_format="auto",
            enable_auto_tools=True,
            tool_parser="hermes",
        )

    def tokens(self, one: Body, template: str) -> list[int] | str:
        """Return the prompt's tokens, or `REFUSED`."""
        try:
            request = ChatCompletionRequest.model_validate(json.loads(json.dumps(one)))
            found = asyncio.run(self._by_template[template].render_chat(request))
        except Exception:  # an answer 400 or 500 of the server
            return REFUSED
        return found[1][0]["prompt_token_ids"] if isinstance(found, tuple) else REFUSED

    def prompt(self, path: str, one: Body, template: str) -> list[int]:
        """Return the prompt's tokens of a body of any API."""
        online = self._by_template[template]
        if path == RESPONSES:
            rendered = asyncio.run(online.render_responses(ResponsesRequest.model_validate(one)))
            return list(rendered.engine_input["prompt_token_ids"])
        if path == MESSAGES:
            messages = AnthropicMessagesRequest.model_validate({"max_tokens": 1, **one})
            request = AnthropicServingMessages.to_chat_completion_request(messages)
        else:
            request = ChatCompletionRequest.model_validate(one)
        found = asyncio.run(online.render_chat(request))
        assert isinstance(found, tuple), found
        return list(found[1][0]["prompt_token_ids"])

    @staticmethod
    def parameters(one: Body) -> object:
        """Return temperature and choice of a tool as parsed, or `REFUSED`."""
        try:
            request = ChatCompletionRequest.model_validate(json.loads(json.dumps(one)))
        except Exception:  # an answer 400 of the server
            return REFUSED
        return request.temperature, request.tool_choice

    def alike(self, one: Body, other: Body) -> dict[str, bool]:
        """Return by template whether two bodies have the same tokens."""
        return {name: self.tokens(one, name) == self.tokens(other, name) for name in ALL}


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(tmp_path_factory.mktemp("model"))


def test_a_change_of_text_is_seen(renderer: Renderer) -> None:
    one, other = (body({"role": "user", "content": text}) for text in "ab")
    assert not any(renderer.alike(one, other).values())
    assert renderer.tokens({**one, "tools": []}, "all") == REFUSED != renderer.tokens(one, "all")


@pytest.mark.parametrize("rule", IN_VLLM, ids=lambda rule: rule.name)
def test_each_row_holds_on_its_templates(renderer: Renderer, rule: Any) -> None:
    found = [renderer.alike(one, other) for one, other in ROWS[rule.name]]
    assert all(renderer.tokens(one, name) != REFUSED for one, _ in ROWS[rule.name] for name in TEMPLATES)
    if rule.templates == "all":
        assert all(all(alike.values()) for alike in found), found
    else:
        seen = {result for alike in found for result in alike.values()}
        assert seen == {True, False}, found


def test_rows_that_vllm_reads_apart_are_not_claimed(renderer: Renderer) -> None:
    for rule in RULES:
        if "vllm" not in rule.versions:
            one, other = ROWS[rule.name][0]
            are_alike = all(renderer.alike(one, other).values()) and renderer.parameters(one) == renderer.parameters(other)
            assert not are_alike, rule


@pytest.mark.parametrize(
    ("kind", "least"), [(ChatCompletionRequest, body(USER)), (CompletionRequest, {"model": "m", "prompt": "a"})]
)
def test_null_is_absent_for_each_parameter_but_those_named(kind: Any, least: Body) -> None:
    """Of fields that no answer depends on, none is in a key."""
    refused = refuses_null(kind, least)
    assert refused and refused <= NULL_COUNTS


def test_a_null_name_changes_how_parts_of_a_result_are_read(renderer: Renderer) -> None:
    results = [{**form, "name": None} for form in (result(), in_part(result()))]
    one, other = (body(USER, calling(), each, tools=[TOOL]) for each in results)
    assert not renderer.alike(one, other)[HARMONY] and key(one, "vllm") != key(other, "vllm")


def test_null_calls_are_refused_with_a_null_content(renderer: Renderer) -> None:
    one, other = (body(USER, {"role": "assistant", "content": None, **calls}, USER) for calls in ({}, {"tool_calls": None}))
    assert renderer.tokens(one, "all") != renderer.tokens(other, "all") == REFUSED and key(one, "vllm") != key(other, "vllm")


APART = {
    *(name for name in BEHAVIOURS if name.endswith("compacted")),
    *("several parts", "system in several blocks"),  # joined by a line end, and by nothing
    "name: null",  # refused
}
"""Behaviours whose turns vLLM reads apart on the template: they do not move either, because another template joins them."""


@pytest.mark.parametrize("behaviour", [name for name in BEHAVIOURS if name not in APART])
def test_turns_that_do_not_move_continue_each_others_prompt(renderer: Renderer, behaviour: str) -> None:
    prompts = [renderer.prompt(*BEHAVIOURS[behaviour](1, turn)[:2], "trimmed") for turn in range(3)]
    for before, prompt in pairwise(prompts):
        assert prompt[: len(before)] == before and len(prompt) > len(before)


def test_requests_with_one_key_have_the_same_tokens(renderer: Renderer) -> None:
    """And those with the same tokens have one key, but for the kinds that docs/reference/what-costs-a-hit.md names."""
    found = counted(renderer, ("vllm", "any"), PAIRS)
    print(*(f"\n{kind}: {each}" for kind, each in found.items()))
    assert not any(each.wrong for each in found.values()), found
    assert found["vllm"].missed < 0.02 and found["any"].joined > PAIRS / 20, found


@pytest.fixture(scope="module")
def of_logs(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(tmp_path_factory.mktemp("model"), as_rendered.TEMPLATES)


@pytest.mark.parametrize("name", as_rendered.COMPARED)
def test_why_counts_the_hits_of_what_vllm_renders(of_logs: Renderer, name: str, tmp_path: Path) -> None:
    def render(one: Body, model: str) -> list[int] | str:
        # In characters, as `lpc why` counts: each is a token, but in Harmony's vocabulary.
        found = of_logs.tokens(one, HARMONY if "gpt-oss" in model else as_rendered.template_of(model))
        assert not isinstance(found, str)
        return get_encoding().decode(found) if "gpt-oss" in model else found

    said, rendered = as_rendered.rates(name, "vllm", render, tmp_path)
    # With gpt-oss little is hit, and one block is 1.6% of a prompt.
    assert said == pytest.approx(rendered, abs=0.02 if "gpt-oss" in name else 0.01)


def test_tools_of_gpt_oss_are_those_of_harmony(renderer: Renderer) -> None:
    fields = {
        "city": {"type": "string", "description": "The city,\nby name."},
        "days": {"type": "integer", "default": 3},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "names": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"x": {"type": "number", "description": "East."}}, "required": ["x"]},
        "also": {"type": ["string", "null"]},
    }
    functions: list[Body] = [
        {"name": "weather", "description": "Tells it.\nFor days.", "parameters": {"type": "object", "properties": fields}},
        {"name": "time", "description": "Tells it."},
    ]
    functions[0]["parameters"]["required"] = ["city"]
    tools = [{"type": "function", "function": function} for function in functions]
    tokens = renderer.tokens(body(USER, tools=tools), HARMONY)
    assert not isinstance(tokens, str)
    _, _, written = get_encoding().decode(tokens).partition("namespace functions {\n\n")
    assert written.partition("} // namespace")[0] == "".join(map(definition, functions))
