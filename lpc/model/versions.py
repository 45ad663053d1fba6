"""Lists, promotes, rolls back and prunes the versions of a model on disk. This module loads no model.

The promoted version is served, else the newest. ``<models>/<name>/promoted.json`` names it, and the versions served before, for
`lpc models rollback`. The file is replaced atomically. Commands that change it hold its lock.

A version that was rolled back is not served again until it is promoted, not even if the promoted one is damaged. If the file
cannot be read, it is not known which that is: no sidecar starts then.
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
from lpc.files import LockedError, locked, owned, sync, write_text
from lpc.model.artifact import Manifest, read_manifest, verify

PROMOTED: Final = "promoted.json"
_FIELDS: Final = frozenset(("version", "before", "rolled_back"))
HISTORY: Final = 10
"""Maximum number of versions in `Promotion.before`."""
SCRATCH_AGE_S: Final = 24 * 3600
"""Age from which an export's scratch folder is removed, because a killed export left it."""

PUBLISH_S: Final = 60.0
"""Longest wait of an export for another command, because it has taken minutes."""


@dataclass(frozen=True)
class Promotion:
    """The promoted version.

    Attributes:
        version: folder name of the version to serve.
        before: versions served before it, latest first, without those that were rolled back.
        rolled_back: versions that were rolled back and not promoted since.
    """

    version: str
    before: tuple[str, ...] = ()
    rolled_back: tuple[str, ...] = ()


def read_promotion(folder: Path) -> Promotion | None:
    """Return the promotion of the model in a folder; None if no version is promoted.

    Raises:
        ArtifactError: the file cannot be read or is invalid.
    """
    path = folder / PROMOTED
    try:
        values = json.loads(path.read_text("utf-8"))
        if not {"version", "before"} <= values.keys() <= _FIELDS:  # with a damaged name a field would count as empty
            raise ValueError
        lists = values["before"], values.get("rolled_back", [])
        if not all(isinstance(one, list) for one in lists):
            raise TypeError
        promotion = Promotion(values["version"], *map(tuple, lists))
    except FileNotFoundError:
        return None
    except (OSError, AttributeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(
            f"{path} cannot be read ({type(error).__name__}): name the version again with `lpc models promote`, or remove the "
            "file with `lpc models unpin`"
        ) from error
    for version in (promotion.version, *promotion.before, *promotion.rolled_back):
        # A name with a slash could point outside the model's folder.
        if not isinstance(version, str) or not version or version.startswith(".") or Path(version).name != version:
            raise ArtifactError(
                f"{path} names {version!r}, which is not a version: run `lpc models promote` or `lpc models unpin`"
            )
    return promotion


def write_promotion(folder: Path, promotion: Promotion) -> None:
    """Replace the promotion atomically. Call with the lock of its file held. Raises OSError."""
    values = {"version": promotion.version, "before": promotion.before[:HISTORY], "rolled_back": promotion.rolled_back}
    write_text(folder / PROMOTED, json.dumps(values) + "\n")


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
        remedy = (
            "make one with `lpc export` (e5-small: with --recipe lpc), or name another folder and model: --models and --model, "
            "in a sidecar LPC_MODELS and LPC_MODEL"
        )
        raise ArtifactError(f"no model in {folder}: {remedy}") from error
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


def served_folder(folder: Path) -> Path:
    """Return the version that a starting sidecar serves: the first valid one of `candidates`.

    Raises:
        ArtifactError: no version is valid; the message is about the first candidate. Or the promotion cannot be read.
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
    """Return the versions in the order in which a starting sidecar tries them, without those that were rolled back.

    Raises:
        ArtifactError: no such model, or the promotion cannot be read.
    """
    found = newest_first(folder)
    promotion = read_promotion(folder)
    if promotion is None:
        return found
    present = {version.name for version in found} - {promotion.version}
    before = [folder / name for name in promotion.before if name in present]
    others = [
        version for version in found if version.name not in (promotion.version, *promotion.before, *promotion.rolled_back)
    ]
    return [folder / promotion.version, *before, *others]


def promote(folder: Path, version: str, *, instead_of: str | None = None) -> None:
    """Make sidecars serve this version, even if newer ones exist. An unreadable promotion is replaced.

    Args:
        instead_of: the version that must be served until now; None: any.

    Raises:
        ArtifactError: the version is missing or damaged, or another one than ``instead_of`` is served; nothing has changed.
        LockedError: another command changes the promotion.
    """
    names = [path.name for path in newest_first(folder)]
    if version not in names:
        raise ArtifactError(f"{folder} has no version {version}: there are {', '.join(names) or 'none'}")
    verify(folder / version)
    with locked(folder / PROMOTED):
        promotion, before = Promotion(""), list[str]()
        with contextlib.suppress(ArtifactError):  # it cannot be read, or nothing was served
            promotion = read_promotion(folder) or promotion
            before.append(served_folder(folder).name)
        if instead_of is not None and before != [instead_of]:
            raise ArtifactError(f"{before[0] if before else 'nothing'} is served, not {instead_of}: nothing is promoted")
        before += promotion.before
        write_promotion(
            folder,
            Promotion(
                version,
                tuple(dict.fromkeys(name for name in before if name != version)),
                tuple(name for name in promotion.rolled_back if name != version),
            ),
        )


def rollback(folder: Path) -> tuple[str, str]:
    """Promote the version that was served before; return the names of the current version and of the promoted one.

    Without a recorded promotion, this is the newest valid version that is older than the current one. A version that was rolled
    back is not recorded as served before, so a second rollback goes one further back.

    Raises:
        ArtifactError: there is none, or the promotion cannot be read; nothing has changed.
        LockedError: another command changes the promotion.
    """
    newest_first(folder)
    with locked(folder / PROMOTED):
        now = served_folder(folder)
        promotion = read_promotion(folder) or Promotion("")
        left = tuple(dict.fromkeys((*promotion.rolled_back, now.name)))
        before = [name for name in promotion.before if name not in left]
        for index, name in enumerate(before):
            if not examine(folder / name).problem:
                write_promotion(folder, Promotion(name, tuple(before[index + 1 :]), left))
                return now.name, name
        created = read_manifest(now).created
        for version in newest_first(folder):
            found = examine(version)
            if version.name in left or found.problem or found.manifest is None:
                continue
            if found.manifest.created < created:
                write_promotion(folder, Promotion(version.name, (), left))
                return now.name, version.name
    raise ArtifactError(
        f"{folder} has no valid version older than {now.name}: list the versions with `lpc models list`, choose one with "
        "`lpc models promote`"
    )


def unpin(folder: Path) -> bool:
    """Remove the promotion, so that sidecars serve the newest version; return whether there was one.

    Raises:
        ArtifactError: no such model.
        LockedError: another command changes the promotion.
    """
    newest_first(folder)
    with locked(folder / PROMOTED):
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
        ArtifactError: no version can be served, or the promotion cannot be read; nothing has changed.
        LockedError: another command changes the promotion.
    """
    newest_first(folder)
    with locked(folder / PROMOTED):
        retained = {served_folder(folder).name}
        if (promotion := read_promotion(folder)) is not None:
            retained |= {promotion.version, *promotion.before}
        found = [version for version in newest_first(folder) if examine(version).manifest is not None]
        removed = [version for version in found[keep:] if version.name not in retained]
        removed += [path for path in folder.iterdir() if path.name.startswith(".") and path.is_dir() and _is_left(path)]
        for path in removed:
            remove(path)
        return [path.name for path in removed]


def _is_left(scratch: Path) -> bool:
    """Return whether a killed export has left a scratch folder: an export at work locks its own, whatever the clock says."""
    if abs(time.time() - scratch.stat().st_mtime) <= SCRATCH_AGE_S:
        return False
    try:
        with owned(scratch, 0.0):
            return True
    except LockedError:
        return False


def publish(made: Path, place: Path) -> None:
    """Move a complete version to its place, where a damaged one is replaced; a valid one that another export made stays.

    Raises:
        LockedError: another command changes the model's versions.
        OSError: it cannot be moved.
    """
    with locked(place.parent / PROMOTED, PUBLISH_S):
        if place.exists():
            try:
                verify(place)
            except ArtifactError:
                remove(place)
            else:
                return
        made.rename(place)
        sync(place.parent)


def remove(version: Path) -> None:
    """Remove a folder of a model, so that a sidecar never sees a part of it. Raises OSError."""
    hidden = version.with_name(f".removed-{secrets.token_hex(8)}")
    version.rename(hidden)
    shutil.rmtree(hidden)
