"""What a hit check sends: the fields of the prompt, few tokens, and nothing else that a body may ask for."""

from typing import Any

import pytest

from response_cache.gateway.check_body import TOKENS, CheckBody, check_body
from response_cache.gateway.clients import REFUSED
from response_cache.gateway.targets import CHAT, COMPLETIONS, RESPONSES

MESSAGES = [{"role": "user", "content": "hello"}]


def of(path: str = CHAT, **fields: Any) -> CheckBody:
    found = check_body(path, {"model": "m", **({"messages": MESSAGES} if path == CHAT else {"prompt": "hello"}), **fields})
    assert isinstance(found, CheckBody)
    return found


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("kind", [None, "vllm", "sglang", "any"])
def test_a_body_that_asks_for_everything_gets_one_short_answer(path: str, kind: str | None) -> None:
    greedy: dict[str, Any] = {"n": 50, "best_of": 50, "use_beam_search": True, "max_tokens": 10**9, "min_tokens": 10**6}
    greedy |= {"stream": True, "stream_options": {"include_usage": True}, "echo": True, "prompt_logprobs": 20, "seed": 1}
    greedy |= {
        "response_format": {"type": "json_object"},
        "logit_bias": {"1": 9},
        "user": "u",
        "session_id": "s",
        "store": True,
    }
    greedy |= {"vllm_xargs": {"lpc_retain_seconds": 9}, "custom_params": {"session_id": "s"}, "extra_body": {"n": 9}}
    greedy |= {name: "x" for holder in REFUSED for name in holder[-1:]} | {"temperature": 2}
    body = of(path, cache_salt="tenant", **greedy)
    for sent, salt in ((body.again(kind), "tenant"), (body.salted("new", kind), "new")):
        logprobs = {"logprobs", "top_logprobs"} if path == CHAT else {"logprobs"}
        hints = {"vllm": {"return_tokens_as_token_ids", "vllm_xargs"}, "sglang": {"custom_params"}}.get(kind or "", set())
        prompt = "messages" if path == CHAT else "prompt"
        assert sent.keys() - hints == {"model", prompt, "max_tokens", "temperature", "stream", "cache_salt"} | logprobs
        assert (sent["max_tokens"], sent["temperature"], sent["stream"], sent["cache_salt"]) == (TOKENS, 0, False, salt)
        assert "lpc_retain_seconds" not in str(sent)
        assert "session_id" not in str(sent)


def test_the_blocks_of_what_is_computed_are_evicted_first_and_those_of_the_request_are_not() -> None:
    assert of().salted("new", "vllm")["vllm_xargs"] == {"lpc_done": 1}
    assert of().salted("new", "sglang")["custom_params"] == {"lpc_done": True}
    assert "lpc_done" not in str(of().again("vllm"))
    assert "lpc_done" not in str(of().salted("new", None))


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, TOKENS),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 2}, 2),
        ({"max_tokens": 9, "max_completion_tokens": 4}, 4),
        ({"max_tokens": 0}, TOKENS),
        ({"max_tokens": True}, TOKENS),
        ({"max_tokens": "7"}, TOKENS),
        ({"max_tokens": None}, TOKENS),
    ],
)
def test_no_more_tokens_are_asked_for_than_by_the_request(fields: dict[str, Any], tokens: int) -> None:
    assert of(**fields).again("vllm")["max_tokens"] == tokens


def test_what_makes_the_prompt_stays() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    fields: dict[str, Any] = {
        "tools": tools,
        "tool_choice": "auto",
        "chat_template_kwargs": {"enable_thinking": False},
        "extra_key": "k",
    }
    assert of(**fields).again(None).items() >= fields.items()
    assert of(COMPLETIONS, prompt=[1, 2, 3]).again(None)["prompt"] == [1, 2, 3]
    assert of(lora_path="adapter").model == "adapter"


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        (RESPONSES, {"input": "hello"}, "endpoint"),
        ("/v1/messages", {"messages": MESSAGES}, "endpoint"),
        (CHAT, {}, "form"),
        (CHAT, {"messages": []}, "form"),
        (CHAT, {"messages": "x"}, "form"),
        (CHAT, {"messages": ["x"]}, "form"),
        (CHAT, {"messages": [{"role": "user", "content": {"a": 1}}]}, "form"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}, "media"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "media"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]}, "media"),
        (COMPLETIONS, {}, "form"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "form"),
        (COMPLETIONS, {"prompt": [[1], [2]]}, "form"),
        (COMPLETIONS, {"prompt": []}, "form"),
        (COMPLETIONS, {"prompt": [True, False]}, "form"),
    ],
)
def test_what_cannot_be_checked_says_why(path: str, fields: dict[str, Any], reason: str) -> None:
    assert check_body(path, fields) == reason
