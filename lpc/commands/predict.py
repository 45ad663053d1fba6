"""`lpc predict`: conversations from a file or standard input to a running sidecar."""

from typing import Annotated

import typer

from lpc.commands.options import Address, Authority, Certificate, Key
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
    is not JSON is taken as one prompt. Answers come in the order of the lines. If a line fails, the others are still answered
    and the exit code is 1. Takes an engine's settings (LPC_...), among them the token's file, LPC_PREDICTOR_TOKEN_FILE.
    """
    from lpc.commands.conversations import Refused, asking, read

    settings = client_settings(predictor_address=address, predictor_ca=ca, client_certificate=certificate, client_key=key)
    lines = read(file)
    failed = 0
    print(f"{'line':>6}  {'turns':>5}  probability  model")
    with asking(settings, timeout) as ask:
        for line in lines:
            try:
                answer = ask(line.read())
            except Refused as error:
                typer.echo(f"lpc: {line.where}: {error}", err=True)
                failed += 1
            else:
                print(
                    f"{line.number:>6}  {answer.turn_count:>5}  {answer.probability:>11.3f}  {answer.model_version}", flush=True
                )
    raise typer.Exit(int(failed > 0))
