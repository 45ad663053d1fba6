"""The versions of a model on disk: which there are, which one is served, and changing that.

What is promoted is served, else the newest. Everything here looks at files only and loads no model.
"""

import contextlib
import os
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lpc.errors import ArtifactError
from lpc.model.artifact import Manifest, read_manifest, verify
from lpc.model.promotion import PROMOTED, Promotion, read_promotion, write_promotion

SCRATCH_AGE_S: Final = 24 * 3600
"""An export's scratch folder that is older was left by one that was killed."""


@dataclass(frozen=True)
class Version:
    """A version folder.

    Attributes:
        manifest: None where it cannot be read.
        problem: why it cannot be served; "" where its files are what the manifest says.
    """

    folder: Path
    manifest: Manifest | None
    problem: str


def newest_first(folder: Path) -> list[Path]:
    """Return the version folders of a model, newest manifest first, unreadable ones last.

    Raises:
        ArtifactError: there is no such model, or its folder cannot be read.
    """
    try:
        found = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactError(
            f"no model in {folder}: make one with `lpc export`, fetch one with `lpc models pull`, or set models and model"
        ) from error
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
    """Return what a version folder holds, every file compared with its checksum."""
    try:
        return Version(version, verify(version), "")
    except ArtifactError as error:
        try:
            return Version(version, read_manifest(version), str(error))
        except ArtifactError:
            return Version(version, None, str(error))


def served(folder: Path) -> Path:
    """Return the version that a sidecar which starts now serves: the promoted one if it is sound, else the newest sound one.

    Raises:
        ArtifactError: there is none; the message is about the first that was looked at.
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
    """Return the versions in the order in which a sidecar that starts tries them. Raises ArtifactError: no such model."""
    found = newest_first(folder)
    promotion = _readable_promotion(folder)
    if promotion is None:
        return found
    promoted = folder / promotion.version
    return [promoted, *(version for version in found if version != promoted)]


def promote(folder: Path, version: str) -> None:
    """Have sidecars serve this version, whatever is newer.

    Raises:
        ArtifactError: it is not there or damaged; nothing has changed then.
    """
    _refuse_unserveable(folder, version)
    before: list[str] = []
    with contextlib.suppress(ArtifactError):  # nothing was served
        before.append(served(folder).name)
    if (promotion := _readable_promotion(folder)) is not None:
        before += promotion.before
    write_promotion(folder, Promotion(version, tuple(dict.fromkeys(name for name in before if name != version))))


def rollback(folder: Path) -> tuple[str, str]:
    """Promote the version that was served before; return the names of the one left and the one promoted.

    Where no promotion tells what was served, it is the newest sound version that is older than the one served. A version that
    was rolled back is not remembered as served before, so a second rollback goes one further back.

    Raises:
        ArtifactError: there is none; nothing has changed then.
    """
    now = served(folder)
    promotion = _readable_promotion(folder)
    before = [name for name in promotion.before if name != now.name] if promotion is not None else []
    for place, name in enumerate(before):
        if not examine(folder / name).problem:
            write_promotion(folder, Promotion(name, tuple(before[place + 1 :])))
            return now.name, name
    created = read_manifest(now).created
    for version in newest_first(folder):
        found = examine(version)
        if not found.problem and found.manifest is not None and found.manifest.created < created:
            write_promotion(folder, Promotion(version.name))
            return now.name, version.name
    raise ArtifactError(
        f"{folder} has no sound version from before {now.name}: `lpc models list` shows what there is, `lpc models promote` "
        "serves any of it"
    )


def unpin(folder: Path) -> bool:
    """Have sidecars serve the newest version again; say whether another was promoted. Raises ArtifactError: no such model."""
    newest_first(folder)
    try:
        (folder / PROMOTED).unlink()
    except FileNotFoundError:
        return False
    return True


def prune(folder: Path, keep: int) -> list[str]:
    """Remove all but the ``keep`` newest versions, and what killed exports left; return the names of what was removed.

    The version served, the promoted one and those served before it stay whatever their age, and so does a folder whose manifest
    cannot be read: somebody may be copying it.

    Raises:
        ArtifactError: no version can be served; nothing has changed then.
    """
    staying = {served(folder).name}
    if (promotion := read_promotion(folder)) is not None:
        staying |= {promotion.version, *promotion.before}
    found = [version for version in newest_first(folder) if examine(version).manifest is not None]
    going = [version for version in found[keep:] if version.name not in staying]
    going += [
        path
        for path in folder.iterdir()
        if path.name.startswith(".") and path.is_dir() and time.time() - path.stat().st_mtime > SCRATCH_AGE_S
    ]
    for path in going:
        # Out of sight first: a sidecar that looks now must not find half a version.
        hidden = folder / f".removed-{secrets.token_hex(8)}"
        path.rename(hidden)
        shutil.rmtree(hidden)
    return [path.name for path in going]


def _readable_promotion(folder: Path) -> Promotion | None:
    try:
        return read_promotion(folder)
    except ArtifactError:
        return None


def _refuse_unserveable(folder: Path, version: str) -> None:
    names = [path.name for path in newest_first(folder)]
    if version not in names:
        raise ArtifactError(f"{folder} has no version {version}: there are {', '.join(names) or 'none'}")
    verify(folder / version)
