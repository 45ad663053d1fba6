"""What a template writes next to user texts is not theirs, and a chat without a template is not read as one text."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from eviction_client.transport.tokenizer_upload import LogOnce, Offer
from lpc.v1 import predictor_pb2
from lpc_cli.checks import judged
from predictor_service.errors import UnreadPrompt, UnreadTemplate
from predictor_service.requests.loading import TokenizerLoader
from predictor_service.requests.served_model import ServedModel
from predictor_service.requests.served_models import ServedModels
from predictor_service.rpc.offers import message_of, status_of
from tests.chat_templates import Style, tokenizer_of
from tests.eventually import patiently
from tests.unit.test_chat_template import build_served_model, calls, chat

IM = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
SMOLLM3 = (
    "<|im_start|>system\nMode: {{ 'off' if enable_thinking is defined and not enable_thinking else 'on' }}<|im_end|>\n"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% elif m.role in ['user', 'tool'] %}<|im_start|>user\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""SmolLM3's: calls are not rendered, and a tool's answer is a user message."""
LLAMA31_TOOLS = (
    "<|begin_of_text|>{% set ns = namespace(first=true) %}{% for m in messages %}<|start_header_id|>{{ m.role }}"
    "<|end_header_id|>\n\n{% if m.role == 'user' and ns.first %}{% set ns.first = false %}{% if tools %}"
    "Given the following functions, please respond with a JSON for a function call.\n\n"
    'Respond in the format {"name": function name}. Do not use variables.\n\n'
    "{% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}{% endif %}{% endif %}{{ m.content | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
ASKED = LLAMA31_TOOLS.replace("{% endfor %}{% endif %}{% endif %}", "{% endfor %}Question: {% endif %}{% endif %}")
LISTED = LLAMA31_TOOLS.replace("{% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}", "{{ tools | tojson }}\n\n")
SOFT_SWITCH = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if m.role == 'user' and enable_thinking is defined "
    "and not enable_thinking and not m.content.endswith('/nothink') %}/nothink{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BEFORE = SOFT_SWITCH.replace("{{ m.content }}{% if", "{% if").replace(
    "/nothink{% endif %}", "/no_think {% endif %}{{ m.content }}"
)
LAST = SOFT_SWITCH.replace("{% if m.role == 'user' and", "{% if loop.last and m.role == 'user' and")
"""The word is behind the last user text only."""
DEFAULT_SYSTEM = (
    "{% for m in messages %}<|{{ m.role }}|>\n{% if loop.first and m.role == 'user' %}Answer in English.\n\n{% endif %}"
    "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "x {y}", "parameters": {"type": "object", "required": ["a"]}},
    },
    {
        "type": "function",
        "function": {"name": "mail", "description": "Sends.", "parameters": {"type": "object", "properties": {}}},
    },
]
dialects = pytest.mark.parametrize("dialect", ["special", "not special", "sentencepiece"])


def turns(style: Style, messages: list[dict[str, Any]], dialect: str = "special", **options: Any) -> Any:
    tokenizer = tokenizer_of(style, dialect)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    return build_served_model("m", tokenizer).user_turns(tokenizer(text, add_special_tokens=False)["input_ids"], 5)


@dialects
@pytest.mark.parametrize("thinks", [None, True, False])
def test_answers_of_tools_behind_replies_without_text_are_not_user_turns(thinks: bool | None, dialect: str) -> None:
    messages = chat("Weather in Paris?") + calls("Paris") * 3 + calls("Rome", "Oslo") + chat("", "Mild.", "Thanks")[1:]
    options = {} if thinks is None else {"enable_thinking": thinks}
    found = turns(Style(SMOLLM3, IM), messages, dialect, **options)
    assert (found.prompts, found.turn_count) == (("Weather in Paris?", "Thanks"), 2)


@pytest.mark.parametrize(
    "text", ["Weather in Paris?", '{"a": 1} is what?', "[1, 2] is a list", "Given the following functions, f"]
)
@pytest.mark.parametrize("template", [LLAMA31_TOOLS, ASKED, LISTED], ids=["Llama 3.1", "with a word behind", "a list"])
@pytest.mark.parametrize("tools", [None, TOOLS[:1], TOOLS], ids=["none", "one", "two"])
@dialects
def test_instructions_about_tools_are_not_a_part_of_the_first_user_text(
    dialect: str, tools: Any, template: str, text: str
) -> None:
    found = turns(Style(template, HEADERS), chat(text, "Mild.", "Thanks"), dialect, tools=tools)
    assert (found.prompts, found.turn_count) == ((text, "Thanks"), 2)


@pytest.mark.parametrize(
    ("template", "added"),
    [(SOFT_SWITCH, GLM), (SOFT_SWITCH, (*GLM, "/nothink")), (BEFORE, GLM), (LAST, GLM), (DEFAULT_SYSTEM, GLM)],
    ids=["GLM-4.5", "an added token", "in front", "the last text", "a default instruction"],
)
@pytest.mark.parametrize("thinks", [None, True, False])
@dialects
def test_a_switch_or_instruction_that_the_template_adds_is_not_a_part_of_a_user_text(
    dialect: str, thinks: bool | None, template: str, added: tuple[str, ...]
) -> None:
    options = {} if thinks is None else {"enable_thinking": thinks}
    found = turns(Style(template, added), chat("Hi there", "Hello", "And more?"), dialect, **options)
    assert (found.prompts, found.turn_count) == (("Hi there", "And more?"), 2)


DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")
ENCODED = {
    "V3.2": "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Weather?<｜Assistant｜></think>\n\n<calls><｜end▁of▁sentence｜>\n\n"
    "<function_results>\n<result>18 degrees</result>\n</function_results>\n\n</think>Mild.<｜end▁of▁sentence｜>"
    "<｜User｜>Thanks<｜Assistant｜></think>",
    "V4": "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Weather?<｜Assistant｜></think>\n\n<calls><｜end▁of▁sentence｜>"
    "<｜User｜><tool_result>18 degrees</tool_result><｜Assistant｜></think>Mild.<｜end▁of▁sentence｜>"
    "<｜User｜>Thanks<｜Assistant｜></think>",
}
"""As vLLM's encoders of DeepSeek write them, without the calls."""


def saved(folder: Path, template: str) -> str:
    tokenizer_of(Style(template, DEEPSEEK)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("prompt", ENCODED.values(), ids=ENCODED)
def test_the_template_of_the_documentation_splits_prompts_of_deepseek(prompt: str) -> None:
    page = Path("docs/reference/vllm.md").read_text()
    template = re.findall(r"```jinja\n(.*?)\n```", page, re.DOTALL)
    tokenizer = tokenizer_of(Style(template[0], DEEPSEEK))
    found = build_served_model("m", tokenizer).user_turns(tokenizer(prompt, add_special_tokens=False)["input_ids"], 5)
    assert (found.prompts, found.turn_count) == (("Weather?", "Thanks"), 2)


@pytest.mark.parametrize("template", ["", "{{ 'no user text' }}"], ids=["none", "unusable"])
@pytest.mark.parametrize("offered", [True, False])
def test_a_chat_of_a_tokenizer_without_a_template_is_unread_and_a_completion_is_read(
    template: str, offered: bool, tmp_path: Path
) -> None:
    loaded = TokenizerLoader().load(saved(tmp_path / "m", template), offered=offered)
    model = ServedModel("m", loaded.backend, loaded.markup, loaded.lengths)
    tokenizer = tokenizer_of(Style("", DEEPSEEK))
    with pytest.raises(UnreadTemplate, match=r"add|chat_template\.jinja") as refusal:
        model.user_turns(tokenizer(ENCODED["V4"], add_special_tokens=False)["input_ids"], 5)
    assert isinstance(refusal.value, UnreadPrompt) and "LPC_SERVED_MODELS" in str(refusal.value)
    completion = tokenizer("<｜begin▁of▁sentence｜>def f(n):", add_special_tokens=False)["input_ids"]
    assert model.user_turns(completion, 5).prompts == ("def f(n):",)


def test_a_tokenizer_of_a_base_model_is_read_without_a_word() -> None:
    tokenizer = tokenizer_of(Style("", ("<|endoftext|>", "<fim_prefix>", "<fim_suffix>")))
    model = build_served_model("m", tokenizer)
    assert model.unread == ""
    ids = tokenizer("<fim_prefix>def f(n):<fim_suffix>", add_special_tokens=False)["input_ids"]
    assert model.user_turns(ids, 5).turn_count == 1


def test_engine_log_and_doctor_report_a_tokenizer_without_a_template(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    models = ServedModels({"m": saved(tmp_path / "m", "")})
    models.wait(patiently(120.0))
    status = status_of(models.look("engine", "m", ""))
    assert status.state == predictor_pb2.TOKENIZER_STATE_READY and "chat_template.jinja" in status.message
    assert not any("can be read" in record.message for record in caplog.records)
    (known,) = (message_of(one) for one in models.known())
    finding = judged(predictor_pb2.Prediction(probability=0.5), known, takes_offers=True)
    assert finding.status == "warn" and "chat_template.jinja" in finding.found
    offer = Offer("m", dict, LogOnce())
    offer.update(status)
    assert (offer.state, offer.is_read_in_part) == ("ready", True)
    assert "the predictor reads m in part" in caplog.records[-1].message
    models.close()
