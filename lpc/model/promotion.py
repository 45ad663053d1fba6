"""The promoted version of a model: ``<models>/<name>/promoted.json``, a file with one object.

If it exists, sidecars serve the version that it names, else the newest one. It is replaced atomically. It also lists the
versions served before, for `lpc models rollback`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lpc.errors import ArtifactError
from lpc.files import replacing

PROMOTED: Final = "promoted.json"
HISTORY: Final = 10
"""Maximum number of versions in `Promotion.before`."""


@dataclass(frozen=True)
class Promotion:
    """The promoted version.

    Attributes:
        version: folder name of the version to serve.
        before: versions served before it, latest first, without those that were rolled back.
    """

    version: str
    before: tuple[str, ...] = ()


def read_promotion(folder: Path) -> Promotion | None:
    """Return the promotion of the model in a folder; None if no version is promoted.

    Raises:
        ArtifactError: the file cannot be read or is invalid.
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
        # A name with a slash could point outside the model's folder.
        if not isinstance(version, str) or not version or version.startswith(".") or Path(version).name != version:
            raise ArtifactError(
                f"{path} names {version!r}, which is not a version: run `lpc models promote` or `lpc models unpin`"
            )
    return promotion


def write_promotion(folder: Path, promotion: Promotion) -> None:
    """Replace the promotion atomically."""
    values = {"version": promotion.version, "before": promotion.before[:HISTORY]}
    with replacing(folder / PROMOTED) as partial:
        partial.write_text(json.dumps(values) + "\n", "utf-8")
