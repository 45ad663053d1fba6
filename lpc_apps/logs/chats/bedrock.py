"""AWS Bedrock's model invocation log: lines of `schemaType` ModelInvocationLog, in S3 or CloudWatch.

Source: https://docs.aws.amazon.com/bedrock/latest/userguide/model-invocation-logging.html. `inputBodyJson` is the body of
Converse or of the model's own API; a large one is in S3, and the line has its path only. `inputTokenCount` of Anthropic's
models counts no cached tokens.
"""

from collections.abc import Iterator

from lpc_apps.logs.chats.body import prompt_of, refuse_other_api, reply_of
from lpc_apps.logs.chats.fields import decoded, first_of, moment, name_of, object_of, tokens_of
from lpc_apps.logs.chats.outcome import ids_of, refuse_uncomputed
from lpc_apps.logs.chats.request import LoggedRequest
from lpc_apps.logs.chats.streams import whole
from lpc_apps.logs.records import Record, WithoutPrompt


def has_shape(record: Record) -> bool:
    """Return whether a record is of this format, by its fields."""
    return record.get("schemaType") == "ModelInvocationLog"


def read(line: Record) -> Iterator[LoggedRequest]:
    """Yield the request of a line. Raises WrongRecord."""
    asked, said = object_of(line.get("input")), object_of(line.get("output"))
    answer = whole(decoded(said.get("outputBodyJson")))
    reply = reply_of(answer)
    body = object_of(asked.get("inputBodyJson"))
    fields = answer if isinstance(answer, dict) else {}
    refuse_uncomputed(line, fields, replied=bool(reply))
    refuse_other_api({"operation": line.get("operation")})
    if not body:
        reason = (
            "the body is in S3, not in the log"
            if "inputBodyS3Path" in asked
            else "no body: log text in the settings of Bedrock"
        )
        raise WithoutPrompt(reason)
    model = line.get("modelId")
    prompt = prompt_of(_in_one_form(body) | {"model": model})
    counts = {"input_tokens": asked.get("inputTokenCount"), "output_tokens": said.get("outputTokenCount")}
    counts |= {f"cache_{kind}_tokens": asked.get(f"cache{kind}InputTokenCount") for kind in ("Read", "Write")}
    counted = tokens_of(object_of(fields.get("usage")))
    input_tokens, output_tokens = (a if a is not None else b for a, b in zip(counted, tokens_of(counts), strict=True))
    metadata = object_of(line.get("requestMetadata"))
    yield LoggedRequest(
        moment(line.get("timestamp")),
        prompt.messages,
        prompt.tools,
        reply,
        session=name_of(first_of(metadata, "session_id", "sessionId")),
        user=name_of(first_of(metadata, "user_id", "userId")) or "",
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        scope=prompt.scope,
        left_out=prompt.left_out,
        ids=tuple(f"request_id:{name}" for name in [name_of(line.get("requestId"))] if name) or ids_of(line),
    )


def _in_one_form(body: Record) -> Record:
    """Return a body with its prompt and tools where OpenAI's API has them."""
    form = dict(body)
    tools = object_of(body.get("toolConfig")).get("tools")
    if tools is not None:
        form["tools"] = tools
    if "messages" not in body and isinstance(text := body.get("inputText"), str):  # Titan
        form["prompt"] = text
    if isinstance(text := body.get("message"), str):  # Cohere
        before = body.get("chat_history")
        turns = [turn for turn in (before if isinstance(before, list) else []) if isinstance(turn, dict)]
        names = {"USER": "user", "CHATBOT": "assistant", "SYSTEM": "system"}
        form["messages"] = [
            *({"role": names.get(str(turn.get("role")), "user"), "content": turn.get("message")} for turn in turns),
            {"role": "user", "content": text},
        ]
    return form
