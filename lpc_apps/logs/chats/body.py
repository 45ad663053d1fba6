"""Bodies of requests and replies of OpenAI's and Anthropic's APIs.

Chat completions (`messages`, `tools`, `functions`), responses (`input`, `instructions`), completions (`prompt`), Anthropic's
messages (`system`, `messages`, `tools`), Gemini's `contents` and `systemInstruction`, ShareGPT's `conversations`, and vLLM's
fields `documents` and `cache_salt`.
"""

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lpc_apps.logs.chats.fields import decoded, first_of, name_of
from lpc_apps.logs.chats.parts import message_of, messages_of, text_message, tools_of
from lpc_apps.logs.chats.request import LoggedMessage, Part
from lpc_apps.logs.chats.streams import whole
from lpc_apps.logs.records import OtherRecord, Record, WithoutPrompt, WrongRecord

OPERATIONS: Final = (
    *("embedding", "rerank", "moderation", "transcription", "speech", "image_generation", "image_edit", "image_variation"),
    *("execute_tool", "invoke_agent", "invoke_workflow", "create_agent", "retrieval", "vector_store", "fine_tuning", "mcp"),
    *("batch", "file", "ocr", "video", "realtime", "search", "score", "tokenize", "count_tokens", "models"),
)
"""Operations that compute no prompt of a chat, as words in the name of an operation or in a path."""
_OTHER: Final = re.compile(rf"(?<![a-z])a?({'|'.join(OPERATIONS)})")
_PATH: Final = re.compile(
    r"[/:](embeddings?|embed_?content|batch_?embed_?contents|re_?rank|moderations|audio/\w+|images/\w+|messages/count_tokens"
    r"|count_?tokens|(?:de)?tokenize|score|classify|pooling|batches|models)/?$"
)
"""Ends of the paths of other APIs."""
_PATHS: Final = ("path", "uri", "url", "request_path", "request_url", "requestPath", "endpoint", "route")
_OPERATIONS: Final = ("operation", "operation_name", "operationName", "call_type", "endpoint", "api")
"""Fields of a record that may have a path, or the name of an operation."""
_MODELS: Final = re.compile(r"embed|bge-|\bgte-|\be5-|rerank|moderation|\btts|whisper|dall-e|gpt-image|stable-diffusion")
"""Words in the names of models that are not for chats."""
_CHAT: Final = re.compile(r"chat|completion|generate|raw_?predict|converse|/messages|/responses")
INSTRUCTIONS: Final = ("system", "instructions", "systemInstruction", "system_instruction")
CUT_MARK: Final = "litellm_truncated"
"""Marks where LiteLLM's database cut a long text."""
REDACTED: Final = frozenset({"redacted-by-litellm", "[REDACTED]", "<redacted>"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a body says about a prompt; fields as in `LoggedRequest`."""

    messages: tuple[LoggedMessage, ...]
    tools: tuple[Part, ...]
    scope: tuple[str, ...]
    left_out: tuple[str, ...]


def refuse_operation(name: object) -> None:
    """Raise OtherRecord if the name of an operation, or a path, is of one that is not a chat."""
    if isinstance(name, str):
        words = name.partition("?")[0].lower().replace("-", "_").replace("/images/", "/image_generation/")
        # A name, or a path's prefix, may have words of both kinds: the last one counts.
        found = max(_OTHER.finditer(words), key=lambda match: match.end(), default=None)
        if found is not None and not _CHAT.search(words, found.end()):
            raise OtherRecord(f"not a chat: {found[1]}")


def refuse_other_api(record: Record) -> None:
    """Raise OtherRecord if a record of any program names the path of another API than one of chats, or its operation."""
    for name in _PATHS:
        value = record.get(name)
        if isinstance(value, str) and (found := _PATH.search(value.partition("?")[0].lower().replace("-", "_"))):
            raise OtherRecord(f"not a chat: {found[1].rpartition('/')[2]}")
    for name in _OPERATIONS:
        value = record.get(name)
        word = value.lower().replace("-", "_").removesuffix("s") if isinstance(value, str) else ""
        if word in OPERATIONS or word == "count_token":
            raise OtherRecord(f"not a chat: {word}")


def refuse_other_answer(answer: Record) -> None:
    """Raise OtherRecord if a response without a reply is that of another API: vectors, images, scores, or numbers of tokens."""
    if isinstance(answer.get("data"), list) or "embedding" in answer or "embeddings" in answer:
        raise OtherRecord("not a chat: embedding or image")
    if isinstance(answer.get("results"), list):
        raise OtherRecord("not a chat: score")
    counts = {"input_tokens", "totalTokens", "total_tokens"} & answer.keys()
    if isinstance(answer.get("tokens"), list) or (counts and {"id", "output", "content", "usage"}.isdisjoint(answer)):
        raise OtherRecord("not a chat: count_tokens")


def prompt_of(body: Record) -> Prompt:
    """Return the prompt of a request's body.

    Raises:
        WrongRecord: it has no messages, or they are not messages.
        OtherRecord: it is the body of another API, or its text was removed.
    """
    messages = decoded(first_of(body, "messages", "contents", "conversations"))
    items, text = (decoded(body.get(name)) for name in ("input", "prompt"))
    instructions = tuple(message for name in INSTRUCTIONS for message in message_of("system", decoded_parts(body.get(name))))
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], list):
        messages = messages[0]  # LangChain's batch of one
    if messages is not None:
        found = messages_of(messages)
    elif items is not None:
        _refuse_embedding(body, items)
        found = (text_message("user", items),) if isinstance(items, str) else messages_of(items)
    elif text is not None:
        _refuse_model(body)
        found = (_completion(text),)
    else:
        raise WrongRecord("no messages")
    found = tuple(message for message in instructions if message.parts) + found
    if not any(message.has_content for message in found):
        raise WrongRecord("no message with content")
    texts = [message.text for message in found]
    if any(text in REDACTED for text in texts):
        raise WithoutPrompt("text redacted")
    left_out = [
        name for name in ("response_format", "previous_response_id", "images") if body.get(name) not in (None, "", {}, [])
    ]
    if any(CUT_MARK in text for text in texts):
        left_out.append("text that LiteLLM cut")
    return Prompt(
        found,
        tuple(tool for name in ("tools", "functions", "documents") for tool in tools_of(body.get(name))),
        tuple(name_of(body.get(name)) or "" for name in ("model", "cache_salt")),
        tuple(left_out),
    )


def decoded_parts(value: object) -> object:
    """Return a list of parts that is a string of JSON; else the value."""
    found = decoded(value)
    if isinstance(found, dict) and "parts" in found:
        found = found["parts"]
    return found if isinstance(found, list) else value


def _refuse_embedding(body: Record, items: object) -> None:
    _refuse_model(body)
    if isinstance(items, str) and "voice" in body:
        raise OtherRecord("not a chat: speech")
    texts = isinstance(items, list) and bool(items) and not any(isinstance(item, dict) for item in items)
    if texts or "encoding_format" in body or "dimensions" in body:
        raise OtherRecord("not a chat: embedding")


def _refuse_model(body: Record) -> None:
    model = body.get("model")
    if isinstance(model, str) and (found := _MODELS.search(model.lower())):
        raise OtherRecord(f"not a chat: {'embedding' if found[0] in ('embed', 'bge-', 'gte-', 'e5-') else found[0].strip('-')}")


def _completion(prompt: object) -> LoggedMessage:
    """Return the prompt of a completion: text, or token ids, of which each becomes the 4 characters of an estimated token."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return text_message("prompt", prompt)
    if not isinstance(prompt, list) or not all(type(token) is int and 0 <= token < 1 << 24 for token in prompt):
        raise WrongRecord("prompt is neither text nor one list of token ids")
    return text_message("prompt", base64.b64encode(b"".join(token.to_bytes(3, "big") for token in prompt)).decode())


def reply_of(value: object) -> tuple[LoggedMessage, ...]:
    """Return the messages of a reply: text, a message, or the body of a response; empty if it has none that can be read."""
    try:
        return tuple(message for message in _replies(whole(value)) if message.parts)
    except WrongRecord:
        return ()


def _replies(value: object) -> Iterator[LoggedMessage]:
    if isinstance(value, str):
        if not value.startswith(("data:", "event:")):  # not a stream's events
            yield text_message("assistant", value)
    elif isinstance(value, list):
        first = value[0] if value and isinstance(value[0], dict) else {}
        if isinstance(first.get("message"), dict) and "role" not in first:  # choices
            yield from _replies({"choices": value})
        else:
            yield from messages_of(value) if value else ()
    elif isinstance(value, dict):
        choices, output = value.get("choices"), value.get("output")
        if isinstance(choices, list):
            first = choices[0] if choices and isinstance(choices[0], dict) else {}
            message = first.get("message")
            yield from _replies(message if isinstance(message, dict) else first.get("text"))
        elif isinstance(output, list):
            yield from _replies(output)
        elif isinstance(candidates := value.get("candidates"), list):  # Gemini's
            yield from _replies(candidates[0].get("content") if candidates and isinstance(candidates[0], dict) else None)
        elif isinstance(value.get("generations"), list):
            yield from _replies(_generation(value["generations"]))
        elif isinstance(message := (output if isinstance(output, dict) else value).get("message"), dict):
            yield from _replies(message)  # of Bedrock or Ollama
        elif text := _text_of_bedrock(value):
            yield text_message("assistant", text)
        elif any(name in value for name in ("content", "parts", "tool_calls", "function_call", "reasoning_content")):
            yield from messages_of([{"role": "assistant", **{k: v for k, v in value.items() if k not in ("role", "type")}}])


def _generation(found: object) -> object:
    """Return the first reply in LangChain's lists of generations: a message, also a serialised one, or text."""
    while isinstance(found, list) and found:
        found = found[0]
    generation = found if isinstance(found, dict) else {}
    message = generation.get("message")
    inner = message.get("kwargs") if isinstance(message, dict) else None
    return inner or message or generation.get("text")


def _text_of_bedrock(answer: Record) -> str:
    """Return the text of an answer of Llama, Titan or Cohere in Bedrock's own APIs of these; empty: it is another answer."""
    results = answer.get("results")
    first = results[0] if isinstance(results, list) and results and isinstance(results[0], dict) else {}
    found = (answer.get("generation"), first.get("outputText"), answer.get("text") if "generation_id" in answer else None)
    return next((text for text in found if isinstance(text, str)), "")
