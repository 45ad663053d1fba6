"""How a command ends: its figures in a file, or one line on standard error and exit code 2."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer

from lpc.errors import LpcError

Result = TypeVar("Result")


def or_fail(action: Callable[[], Result]) -> Result:
    """Return what an action returns; what a user can mend is said in one line."""
    try:
        return action()
    except LpcError as error:
        fail(str(error))


def report(measure: Callable[[], dict[str, Any]], json_file: Path | None) -> dict[str, Any]:
    """Return the figures of a measurement; write them to a file, if one is named."""
    figures = or_fail(measure)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def fail(message: str) -> NoReturn:
    """Say why on standard error and end with exit code 2."""
    typer.echo(f"lpc: {message}", err=True)
    raise SystemExit(2)
