"""Lists, promotes, rolls back and prunes the versions of a model on disk. This module loads no model.

The promoted version is served, else the newest. ``<models>/<name>/promoted.json`` names it, and the versions served before, for
`lpc models rollback`. The file is replaced atomically.
"""

import contextlib
import json
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lpc.errors import ArtifactError
from lpc.files import replacing
from lpc.model.artifact import Manifest, read_manifest, verify

PROMOTED: Final = "promoted.json"
HISTORY: Final = 10
"""Maximum number of versions in `Promotion.before`."""
SCRATCH_AGE_S: Final = 24 * 3600
"""Age from which an export's scratch folder is removed, because a killed export left it."""


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


@dataclass(frozen=True)
class Version:
    """A version folder.

    Attributes:
        manifest: None if it cannot be read.
        problem: why it cannot be served; "" if its files match the manifest.
    """

    folder: Path
    manifest: Manifest | None
    problem: str


def newest_first(folder: Path) -> list[Path]:
    """Return the version folders of a model, newest manifest first, unreadable ones last.

    Raises:
        ArtifactError: the model does not exist, or its folder cannot be read.
    """
    try:
        found = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(f"no model in {folder}: make one with `lpc export`, or set models and model") from error
    except OSError as error:
        raise ArtifactError(
            f"the models in {folder} cannot be read ({error.strerror}): let user {os.getuid()}, as which this runs, read them"
        ) from error

    def created(version: Path) -> str:
        try:
            return read_manifest(version).created
        except ArtifactError:
            return ""

    return sorted(found, key=lambda version: (created(version), version.name), reverse=True)


def examine(version: Path) -> Version:
    """Return a version's manifest and problem, after comparing every file with its checksum."""
    try:
        return Version(version, verify(version), "")
    except ArtifactError as error:
        try:
            return Version(version, read_manifest(version), str(error))
        except ArtifactError:
            return Version(version, None, str(error))


def served(folder: Path) -> Path:
    """Return the version that a starting sidecar serves: the promoted one if it is valid, else the newest valid one.

    Raises:
        ArtifactError: no version is valid; the message is about the first candidate.
    """
    first_error: ArtifactError | None = None
    for version in candidates(folder):
        try:
            verify(version)
        except ArtifactError as error:
            first_error = first_error or error
        else:
            return version
    raise first_error or ArtifactError(f"{folder} has no versions: make one with `lpc export`")


def candidates(folder: Path) -> list[Path]:
    """Return the versions in the order in which a starting sidecar tries them. Raises ArtifactError: no such model."""
    found = newest_first(folder)
    promotion = _readable_promotion(folder)
    if promotion is None:
        return found
    promoted = folder / promotion.version
    return [promoted, *(version for version in found if version != promoted)]


def promote(folder: Path, version: str) -> None:
    """Make sidecars serve this version, even if newer ones exist.

    Raises:
        ArtifactError: the version is missing or damaged; nothing has changed.
    """
    names = [path.name for path in newest_first(folder)]
    if version not in names:
        raise ArtifactError(f"{folder} has no version {version}: there are {', '.join(names) or 'none'}")
    verify(folder / version)
    before: list[str] = []
    with contextlib.suppress(ArtifactError):  # nothing was served
        before.append(served(folder).name)
    if (promotion := _readable_promotion(folder)) is not None:
        before += promotion.before
    write_promotion(folder, Promotion(version, tuple(dict.fromkeys(name for name in before if name != version))))


def rollback(folder: Path) -> tuple[str, str]:
    """Promote the version that was served before; return the names of the current version and of the promoted one.

    Without a recorded promotion, this is the newest valid version that is older than the current one. A version that was rolled
    back is not recorded as served before, so a second rollback goes one further back.

    Raises:
        ArtifactError: there is none; nothing has changed.
    """
    now = served(folder)
    promotion = _readable_promotion(folder)
    before = [name for name in promotion.before if name != now.name] if promotion is not None else []
    for index, name in enumerate(before):
        if not examine(folder / name).problem:
            write_promotion(folder, Promotion(name, tuple(before[index + 1 :])))
            return now.name, name
    created = read_manifest(now).created
    for version in newest_first(folder):
        found = examine(version)
        if not found.problem and found.manifest is not None and found.manifest.created < created:
            write_promotion(folder, Promotion(version.name))
            return now.name, version.name
    raise ArtifactError(
        f"{folder} has no valid version older than {now.name}: list the versions with `lpc models list`, choose one with "
        "`lpc models promote`"
    )


def unpin(folder: Path) -> bool:
    """Remove the promotion, so that sidecars serve the newest version; return whether there was one.

    Raises:
        ArtifactError: no such model.
    """
    newest_first(folder)
    try:
        (folder / PROMOTED).unlink()
    except FileNotFoundError:
        return False
    return True


def prune(folder: Path, keep: int) -> list[str]:
    """Remove all but the ``keep`` newest versions, and scratch folders of killed exports; return the names of removed folders.

    The served version, the promoted one and those served before it remain at any age. So does a folder without a readable
    manifest, because it may be an unfinished copy.

    Raises:
        ArtifactError: no version can be served; nothing has changed.
    """
    retained = {served(folder).name}
    if (promotion := read_promotion(folder)) is not None:
        retained |= {promotion.version, *promotion.before}
    found = [version for version in newest_first(folder) if examine(version).manifest is not None]
    removed = [version for version in found[keep:] if version.name not in retained]
    removed += [
        path
        for path in folder.iterdir()
        if path.name.startswith(".") and path.is_dir() and time.time() - path.stat().st_mtime > SCRATCH_AGE_S
    ]
    for path in removed:
        # Rename first, so that a sidecar never sees a partly deleted version.
        hidden = folder / f".removed-{secrets.token_hex(8)}"
        path.rename(hidden)
        shutil.rmtree(hidden)
    return [path.name for path in removed]


def _readable_promotion(folder: Path) -> Promotion | None:
    try:
        return read_promotion(folder)
    except ArtifactError:
        return None
