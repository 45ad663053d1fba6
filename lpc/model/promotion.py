"""The promoted version of a model: ``<models>/<name>/promoted.json``, a file of one object.

While it is there, sidecars serve the version that it names, whatever is newer; without it, the newest. It appears and changes
whole (written next to its place and renamed). It also remembers which versions were served before, for `lpc models rollback`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lpc.errors import ArtifactError
from lpc.files import replacing

PROMOTED: Final = "promoted.json"
REMEMBERED: Final = 10
"""Versions served before that are remembered."""


@dataclass(frozen=True)
class Promotion:
    """What is promoted.

    Attributes:
        version: the one to serve, a folder's name.
        before: versions served before it, the last one first, without those that were rolled back.
    """

    version: str
    before: tuple[str, ...] = ()


def read_promotion(folder: Path) -> Promotion | None:
    """Return what is promoted of the model in a folder; None: nothing.

    Raises:
        ArtifactError: the file is there but cannot be read, or names no version.
    """
    path = folder / PROMOTED
    try:
        values = json.loads(path.read_text("utf-8"))
        promotion = Promotion(values["version"], tuple(values["before"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(
            f"{path} cannot be read ({type(error).__name__}): name the version again with `lpc models promote`, or remove the "
            "file with `lpc models unpin`"
        ) from error
    for version in (promotion.version, *promotion.before):
        # A name with a slash would lead out of the model's folder.
        if not isinstance(version, str) or not version or version.startswith(".") or Path(version).name != version:
            raise ArtifactError(
                f"{path} names {version!r}, which is not a version: run `lpc models promote` or `lpc models unpin`"
            )
    return promotion


def write_promotion(folder: Path, promotion: Promotion) -> None:
    """Promote; the change is seen whole or not at all."""
    values = {"version": promotion.version, "before": promotion.before[:REMEMBERED]}
    with replacing(folder / PROMOTED) as partial:
        partial.write_text(json.dumps(values) + "\n", "utf-8")
