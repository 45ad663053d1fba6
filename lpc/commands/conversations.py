"""Conversations from a file or standard input, and what a running sidecar says about them: `lpc predict`, `lpc demo`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from eviction_client.settings import ClientSettings
from lpc.errors import LpcError
from lpc.v1 import predictor_pb2 as pb
from lpc.v1 import predictor_pb2_grpc as rpc
from lpc.wire.access import access_of


class PredictError(LpcError):
    """The input or the sidecar is at fault. The message says which and what to do."""


def ask(conversations: Sequence[pb.Conversation], settings: ClientSettings, timeout_s: float) -> list[pb.Prediction]:
    """Return the sidecar's prediction for each conversation, asked one after the other.

    Args:
        settings: of an engine: where the sidecar is, certificates, token.
        timeout_s: seconds for each answer.

    Raises:
        PredictError: the sidecar refused or is not there.
        CertificateError: a certificate file cannot be used.
    """
    access = access_of(settings)()
    answers = []
    with access.channel(settings.predictor_address, [("grpc.max_send_message_length", -1)]) as channel:
        stub = rpc.ContinuationPredictorStub(channel)
        for number, conversation in enumerate(conversations, 1):
            request = pb.PredictRequest(conversation=conversation)
            try:
                answers.append(stub.Predict(request, timeout=timeout_s, metadata=access.metadata).prediction)
            except grpc.RpcError as error:
                raise PredictError(_refusal(error, number, settings)) from error
    return answers


def read(file: str) -> list[pb.Conversation]:
    """Return the conversations of a file (-: standard input): JSON, JSON Lines, or text as one prompt. Raises PredictError."""
    if file == "-" and sys.stdin.isatty():
        print("type a prompt, or chat JSON, and end it with Ctrl-D on a line of its own", file=sys.stderr)
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise PredictError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PredictError(f"{file} is not UTF-8 (byte {error.start}): convert it first") from error
    if not text.strip():
        raise PredictError(f"{'standard input' if file == '-' else file} is empty: give chat JSON or the text of a prompt")
    if text.lstrip()[0] not in "[{":
        return [pb.Conversation(prompt=text)]
    try:
        return [conversation(json.loads(text), "the input")]
    except json.JSONDecodeError as whole:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        try:
            return [conversation(json.loads(line), f"line {number}") for number, line in lines]
        except json.JSONDecodeError as error:
            raise PredictError(f"{file} is neither JSON ({whole}) nor JSON Lines ({error})") from error


def conversation(value: Any, where: str) -> pb.Conversation:
    """Return the request for one parsed conversation. Raises PredictError naming ``where``."""
    record = {"messages": value} if isinstance(value, list) else value
    messages = record.get("messages")
    if not isinstance(messages, list):
        raise PredictError(f"{where} has no list of messages")
    result = pb.Conversation()
    for position, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            raise PredictError(f"{where}: message {position} has no role")
        content = message.get("content") or ""
        if isinstance(content, list):  # OpenAI's content parts: the text ones count
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        if not isinstance(content, str):
            raise PredictError(f"{where}: the content of message {position} is not text")
        result.chat.messages.add(role=role, content=content)
    if not messages:
        result.chat.SetInParent()
    turn_count: Any = record.get("turn_count")
    if turn_count is not None:
        whole = isinstance(turn_count, int) or (isinstance(turn_count, float) and turn_count.is_integer())
        if isinstance(turn_count, bool) or not whole or not 1 <= turn_count < 2**31:
            raise PredictError(f"{where}: turn_count must be a whole number from 1 on, got {turn_count}")
        result.turn_count = int(turn_count)
    return result


def _refusal(error: grpc.RpcError, number: int, settings: ClientSettings) -> str:
    status: grpc.StatusCode = error.code()
    if status is grpc.StatusCode.UNAVAILABLE:
        spoken = "in clear" if settings.predictor_ca is None else "over TLS"
        return (
            f"no sidecar answers {spoken} at {settings.predictor_address}: start one with `lpc serve`, or name another with "
            "--address; `lpc doctor` tells what is wrong with certificates"
        )
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return "the sidecar refuses this token, or wants one: set LPC_PREDICTOR_TOKEN to a token of its token file"
    return f"conversation {number}: {status.name}: {error.details()}"
