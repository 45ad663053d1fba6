"""Start of the `lpc` command. It imports little, so that Ctrl-C is handled while the commands are imported."""

import os
import signal
from typing import Final, NoReturn

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C."""


def main() -> None:
    """Run the command. Until its modules are imported, Ctrl-C ends the process at once: nothing has begun."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # else it is ignored, as by nohup, and stays so
        signal.signal(signal.SIGINT, leave)
    from lpc_cli.cli import main as run

    run(leave)


def leave(_number: int, _frame: object) -> NoReturn:
    """End the process. An exception could be caught by the module that is imported, which would then report something else."""
    os.write(2, b"lpc: interrupted\n")
    os._exit(INTERRUPTED)
