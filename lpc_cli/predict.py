"""`lpc predict`: send conversations from a file or standard input to a running sidecar."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from lpc.errors import LpcError
from lpc.wire.session import name_of
from lpc.wire.terminal import shown
from lpc_cli.options import Address, JsonOutput, Output
from lpc_cli.outcome import report
from lpc_cli.settings import client_settings

if TYPE_CHECKING:  # gRPC, and what reads settings, take long to load: no other command waits for them
    import grpc

    from eviction_client.settings import ClientSettings
    from lpc.v1 import predictor_pb2 as pb

LARGEST_TURN_COUNT: Final = 2**31 - 1


class PredictError(LpcError):
    """The input or the sidecar is at fault. The message says which and what to do."""


class Refused(PredictError):
    """One conversation cannot be answered; others can."""


class Line(NamedTuple):
    """A conversation of the input: its line number, its name in messages, and a parser that may raise Refused."""

    number: int
    where: str
    read: Callable[[], "pb.Conversation"]


def predict(
    file: Annotated[str, typer.Argument(help="Chat JSON or JSON Lines, or plain text; - for standard input.")] = "-",
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for each answer.")] = 10.0,
    output: Output = None,
    as_json: JsonOutput = False,
    address: Address = None,
) -> None:
    """Print the probability that each conversation continues.

    A conversation is `{"messages": [{"role": "user", "content": "..."}], "turn_count": 3, "user": "u1"}` or a list of
    messages. Of the user, only a digest is sent. Text that is not JSON counts as one prompt. Answers are in the order of the
    lines. If a line fails, the others are still answered and the exit code is 1. Reads an engine's settings (LPC_...).
    """
    settings = client_settings(predictor_address=address)
    figures = report(lambda: _predict(settings, file, timeout), output, as_json=as_json)
    raise typer.Exit(int(figures["failed"] > 0))


def _predict(settings: "ClientSettings", file: str, timeout: float) -> dict[str, Any]:
    """Print a row for each answer; return them."""
    rows: list[dict[str, Any]] = []
    lines = read(file)
    with asking(settings, timeout) as ask:
        for line in lines:
            try:
                answer = ask(line.read())
            except Refused as error:
                typer.echo(f"lpc: {shown(f'{line.where}: {error}')}", err=True)
                continue
            if not rows:
                print(f"{'line':>6}  {'turns':>5}  probability  model")
            turns, probability, model = answer.turn_count, answer.probability, answer.model_version
            print(f"{line.number:>6}  {turns:>5}  {probability:>11.3f}  {shown(model)}", flush=True)
            rows.append({"line": line.number, "turns": turns, "probability": probability, "model_version": model})
    return {"predictions": rows, "failed": len(lines) - len(rows)}


@contextlib.contextmanager
def asking(settings: "ClientSettings", timeout_s: float) -> "Iterator[Callable[[pb.Conversation], pb.Prediction]]":
    """Yield a function that calls the sidecar. It raises Refused for one conversation, and PredictError if no call can succeed.

    Args:
        settings: an engine's: address, certificates, token.
        timeout_s: of each call.

    Raises:
        CertificateError: a certificate file cannot be used.
    """
    import grpc

    from lpc.v1 import predictor_pb2 as pb
    from lpc.v1 import predictor_pb2_grpc as rpc
    from lpc.wire.access import access_of

    access = access_of(settings)()
    with access.channel(settings.predictor_address, [("grpc.max_send_message_length", -1)]) as channel:
        stub = rpc.ContinuationPredictorStub(channel)

        def ask(conversation: pb.Conversation) -> pb.Prediction:
            request = pb.PredictRequest(conversation=conversation)
            try:
                return stub.Predict(request, timeout=timeout_s, metadata=access.metadata).prediction
            except grpc.RpcError as error:
                raise _refusal(error, settings) from error

        yield ask


def read(file: str) -> list[Line]:
    """Return the conversations of a file (-: standard input): JSON, JSON Lines, or text as one prompt. Raises PredictError."""
    from lpc.v1 import predictor_pb2 as pb

    if file == "-" and sys.stdin.isatty():
        print("type a prompt or chat JSON, then Ctrl-D on a new line", file=sys.stderr)
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = data.decode("utf-8")
    except OSError as error:
        raise PredictError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PredictError(f"{file} is not UTF-8 (byte {error.start}): convert it first") from error
    if not text.strip():
        raise PredictError(f"{'standard input' if file == '-' else file} is empty: give chat JSON or the text of a prompt")
    if isinstance(_parsed(text), dict | list):
        return [Line(1, "the input", partial(conversation, text))]
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    found = [_parsed(line) for _, line in lines]
    begins_as_json = lines[0][1].lstrip().startswith("{") or not isinstance(found[0], ValueError)
    if begins_as_json and any(isinstance(value, dict | list) for value in found):
        return [Line(number, f"line {number}", partial(conversation, line)) for number, line in lines]
    if text.lstrip().startswith("{"):
        print("lpc: the input is not JSON and counts as one prompt", file=sys.stderr)
    return [Line(1, "the input", partial(pb.Conversation, prompt=text))]


def conversation(text: str) -> "pb.Conversation":
    """Return the request for one conversation in JSON. Raises Refused."""
    from lpc.v1 import predictor_pb2 as pb

    value = _parsed(text)
    if isinstance(value, ValueError):
        raise Refused(f"not JSON: {value}")
    record = {"messages": value} if isinstance(value, list) else value
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list):
        raise Refused("expected a list of messages, or an object that has one")
    result = pb.Conversation()
    for position, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            raise Refused(f"message {position} has no role")
        try:
            result.chat.messages.add(role=role, content=_content(message.get("content") or ""))
        except TypeError:
            raise Refused(f"the content of message {position} is not text") from None
        except ValueError:  # half of a surrogate pair
            raise Refused(f"message {position} is not valid Unicode") from None
    if not messages:
        result.chat.SetInParent()
    turn_count: Any = record.get("turn_count")
    if turn_count is not None:
        whole = isinstance(turn_count, int) or (isinstance(turn_count, float) and turn_count.is_integer())
        if isinstance(turn_count, bool) or not whole or not 1 <= turn_count <= LARGEST_TURN_COUNT:
            raise Refused(f"turn_count must be a whole number from 1 to {LARGEST_TURN_COUNT}")
        result.turn_count = int(turn_count)
    user: Any = record.get("user")
    if user is not None:
        if not isinstance(user, str) or not user:
            raise Refused("user must be a text of at least one character, or left out")
        result.user = name_of(user)  # as engines do without a salt
    return result


def _content(content: Any) -> Any:
    """Return the text of OpenAI's content parts. Raises TypeError if a part's text is not text."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content


def _parsed(text: str) -> Any:
    """Return the JSON value, or the ValueError that names what is wrong with it."""
    try:
        return json.loads(text)
    except ValueError as error:
        return error
    except RecursionError:
        return ValueError("nested too deeply")


def _refusal(error: "grpc.RpcError", settings: "ClientSettings") -> PredictError:
    import grpc

    from lpc.wire.access import proxy_advice

    status: grpc.StatusCode = error.code()
    if status is grpc.StatusCode.UNAVAILABLE:
        spoken = "in clear" if settings.predictor_ca is None else "over TLS"
        advice = proxy_advice(settings.predictor_address) or (
            "start one with `lpc serve`, or name another with --address; `lpc doctor` finds what is wrong with certificates"
        )
        return PredictError(f"no sidecar answers {spoken} at {settings.predictor_address}: {advice}")
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return PredictError(
            "the sidecar refuses this token, or needs one: name a file with one of its tokens in LPC_PREDICTOR_TOKEN_FILE"
        )
    return Refused(f"{status.name}: {error.details()}")
