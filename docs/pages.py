"""What the pages that are made of many runs have in common: heads of tables, and a picture of small ones."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

COLUMNS: Final = 4


def head(columns: Sequence[str]) -> Iterator[str]:
    """Yield the head of a table with a row for each workload."""
    yield "| workload | " + " | ".join(columns) + " |"
    yield "|---|" + "---|" * len(columns)


def small_pictures(path: Path, names: Sequence[str], draw: Callable[[Any, str], None], *, up: str, across: str) -> None:
    """Draw a small picture for each workload, and write them as one.

    Args:
        draw: draws a workload's into the axes that it is given; 0 is marked there, and the title is its name.
        up, across: what the axes say.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = -(-len(names) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(13, 2.4 * rows), squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, names, strict=False):
        draw(axis, name)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_title(name, fontsize=9)
        axis.grid(alpha=0.3)
    axes.flat[0].legend(fontsize=7)
    figure.supylabel(up)
    figure.supxlabel(across)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
