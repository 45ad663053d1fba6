"""What the replays of a log through engines have in common: the plug-in's sidecar, and the table of what each side has hit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.processes import Sidecar
from benchmarks.trace_predictors import SERVED

REAL_REFIT_S: Final = 86_400.0
"""Never, that is: the virtual clock says when the return model is refitted."""


def virtual_sidecar(home: Path, models: Path, model: str, tokenizer: Path) -> Sidecar:
    """Return a side's sidecar, to be started: the real one by the clock in ``home``, which knows the engine's tokenizer."""
    command = ("benchmarks.virtual_sidecar", str(home / "clock"))
    served = {SERVED: str(tokenizer)}
    return Sidecar(home, models, model, command=command, served_models=served, returns_refit_s=REAL_REFIT_S)


def show_sides(screen: Console, figures: dict[str, Any], title: str, *, size: str, stock: str, proofs: Sequence[str]) -> None:
    """Print what each side has hit at each capacity, and what was proved beside.

    Args:
        size: what a row's capacity is counted in.
        stock: what the engine's own side is called.
        proofs: names of figures that are true or not.
    """
    gained = f"plug-in / {stock.rpartition(' ')[2]}"
    table = Table("capacity", size, stock, "plug-in", "oracle", gained, "answered", title=title)
    for row in figures["rows"]:
        hit, prompt = row["cached_tokens"], row["prompt_tokens"]
        cells = [f"{hit[side]:,} ({hit[side] / prompt:.1%})" for side in ("stock", "plugin", "oracle")]
        gain = f"{hit['plugin'] / max(hit['stock'], 1):.2f}"
        table.add_row(f"{row['capacity_fraction']:.0%}", f"{row[size]:,}", *cells, gain, f"{row['answered_share']:.1%}")
    screen.print(table)
    for name in proofs:
        screen.print(f"{name}: {figures[name]}")
