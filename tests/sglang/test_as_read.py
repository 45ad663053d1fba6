"""The rules of what SGLang reads of a chat, run through its own preprocessing: a release that changes one is noticed."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.entrypoints.openai import serving_chat
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from sglang.srt.parser.jinja_template_utils import detect_jinja_template_content_format
from transformers import AutoTokenizer

from lpc.requests.rules import NULL_COUNTS, RULES
from lpc_apps.tiny_llama import build
from testing.engine_internals import prompt_of
from tests import as_rendered
from tests.as_read import PAIRS, REFUSED, ROWS, TEMPLATES, USER, Body, body, counted, refuses_null

COVERED = {"arguments_text": "arguments", "unknown_keys": "unread_keys"}
"""Rules of vLLM that another one of SGLang's contains."""


class Absent:
    """Stands for objects of a server: an attribute that is not given is None."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Renderer:
    """SGLang's preprocessing of chats, without a server."""

    names = tuple(TEMPLATES)

    def __init__(self, folder: Path, templates: Mapping[str, str] = TEMPLATES) -> None:
        model = Absent(
            get_default_sampling_params=dict, hf_config=Absent(model_type="llama", architectures=["LlamaForCausalLM"])
        )
        self._by_template = {}
        for name, template in templates.items():
            tokenizer = AutoTokenizer.from_pretrained(str(build(folder / name)))
            tokenizer.chat_template = template
            form = detect_jinja_template_content_format(template)
            self._by_template[name] = serving_chat.OpenAIServingChat(
                Absent(config_value=lambda name: None, model_config=model, tokenizer=tokenizer),
                Absent(jinja_template_content_format=form),
            )

    def tokens(self, one: Body, template: str) -> list[int] | str:
        """Return the prompt's tokens, or `REFUSED`."""
        try:
            request = ChatCompletionRequest.model_validate(json.loads(json.dumps(one)))
            found = prompt_of(self._by_template[template], request)
        except Exception:  # an answer 400 or 500 of the server
            return REFUSED
        return list(found.prompt_ids)

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
        return {name: self.tokens(one, name) == self.tokens(other, name) for name in TEMPLATES}


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_chat, "get_serving", Absent)
        return Renderer(tmp_path_factory.mktemp("model"))


def test_a_change_of_text_is_seen(renderer: Renderer) -> None:
    one, other = (body({"role": "user", "content": text}) for text in "ab")
    assert not any(renderer.alike(one, other).values())


@pytest.mark.parametrize("rule", [rule for rule in RULES if "sglang" in rule.versions], ids=lambda rule: rule.name)
def test_each_row_holds_on_its_templates(renderer: Renderer, rule: Any) -> None:
    found = [renderer.alike(one, other) for one, other in ROWS[rule.name]]
    assert all(renderer.tokens(one, name) != REFUSED for one, _ in ROWS[rule.name] for name in TEMPLATES)
    if rule.templates == "all":
        assert all(all(alike.values()) for alike in found), found
    else:
        assert any(any(alike.values()) for alike in found), found


@pytest.mark.parametrize("rule", [rule for rule in RULES if "sglang" not in rule.versions], ids=lambda rule: rule.name)
def test_rows_that_sglang_reads_apart_are_not_claimed(renderer: Renderer, rule: Any) -> None:
    if rule.name in COVERED:
        pytest.skip(f"the rule `{COVERED[rule.name]}` covers it for SGLang")
    assert any(not all(renderer.alike(*row).values()) for row in ROWS[rule.name])


@pytest.mark.parametrize(
    ("kind", "least"), [(ChatCompletionRequest, body(USER)), (CompletionRequest, {"model": "m", "prompt": "a"})]
)
def test_null_is_absent_for_each_parameter_but_those_named(kind: Any, least: Body) -> None:
    refused = refuses_null(kind, least)
    assert refused and refused <= NULL_COUNTS


def test_requests_with_one_key_have_the_same_tokens(renderer: Renderer) -> None:
    """And those with the same tokens have one key, but for the kinds that docs/reference/what-costs-a-hit.md names."""
    found = counted(renderer, ("sglang", "any"), PAIRS)
    print(*(f"\n{kind}: {each}" for kind, each in found.items()))
    assert not any(each.wrong for each in found.values()), found
    assert found["sglang"].missed < 0.02 and found["any"].joined > PAIRS / 20, found


@pytest.fixture(scope="module")
def of_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Renderer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_chat, "get_serving", Absent)
        yield Renderer(tmp_path_factory.mktemp("model"), as_rendered.TEMPLATES)


@pytest.mark.parametrize("name", as_rendered.COMPARED)
def test_why_counts_the_hits_of_what_sglang_renders(of_logs: Renderer, name: str, tmp_path: Path) -> None:
    def render(one: Body, model: str) -> list[int]:
        found = of_logs.tokens(one, as_rendered.template_of(model))
        assert not isinstance(found, str)
        return found

    said, rendered = as_rendered.rates(name, "sglang", render, tmp_path)
    # With gpt-oss little is hit, and one block is 1.6% of a prompt. The template stands for its own, and has tools as JSON.
    assert said == pytest.approx(rendered, abs=0.02 if "gpt-oss" in name else 0.01)
