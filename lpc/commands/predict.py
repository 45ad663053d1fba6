"""`lpc predict`: conversations from a file or standard input to a running sidecar."""

from typing import Annotated

import typer

from lpc.commands.options import Address, Authority, Certificate, Key
from lpc.commands.outcome import or_fail
from lpc.commands.settings import client_settings


def predict(
    file: Annotated[str, typer.Argument(help="Chat JSON or JSON Lines, or plain text; - for standard input.")] = "-",
    address: Address = None,
    ca: Authority = None,
    certificate: Certificate = None,
    key: Key = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait.")] = 10.0,
) -> None:
    """Print the probability that each conversation continues.

    A conversation is `{"messages": [{"role": "user", "content": "..."}], "turn_count": 3}` or a list of messages; text that
    is not JSON is taken as one prompt. Takes an engine's settings (LPC_...), among them the token, LPC_PREDICTOR_TOKEN.
    """
    from rich.table import Table

    from lpc.commands.conversations import ask, read
    from lpc.wire.terminal import console

    settings = client_settings(predictor_address=address, predictor_ca=ca, predictor_certificate=certificate, predictor_key=key)
    table = Table("conversation", "turns", "probability", "model")
    for number, answer in enumerate(or_fail(lambda: ask(read(file), settings, timeout)), 1):
        table.add_row(str(number), str(answer.turn_count), f"{answer.probability:.3f}", answer.model_version)
    console().print(table)
