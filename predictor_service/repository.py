"""The model repository on disk: which version to serve, and the loading of a newer one when it appears."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from predictor_service.artifact import Manifest, read_manifest
from predictor_service.errors import ArtifactError
from predictor_service.inference import InferenceSettings, Model

log = logging.getLogger(__name__)


class ModelRepository:
    """Versions of one model: folders ``<root>/<name>/<version>/``."""

    def __init__(self, root: Path, name: str, settings: InferenceSettings) -> None:
        self.folder = root / name
        self._settings = settings
        # Versions that could not be loaded, with the time stamp of their manifest: tried again only when it changes.
        self._broken: dict[str, int] = {}

    def load_newest(self) -> Model:
        """Load the newest version that can be loaded.

        Raises:
            ArtifactError: there is none; the message is about the newest.
        """
        if not self.folder.is_dir():
            raise ArtifactError(f"no model in {self.folder}: make one with `lpc export`, or set models and model")
        first_error: ArtifactError | None = None
        for folder in self._folders():
            try:
                return Model(folder, self._settings)
            except ArtifactError as error:
                self._note_broken(folder, error)
                first_error = first_error or error
        raise first_error or ArtifactError(f"{self.folder} has no versions: make one with `lpc export`")

    def load_newer(self, current: Manifest) -> Model | None:
        """Load the newest version if it is newer than ``current``; None when there is no newer one.

        Raises:
            ArtifactError: a newer version cannot be loaded. It is not tried again until its manifest changes.
        """
        for folder in self._folders():
            if self._broken.get(folder.name) == _stamp(folder):
                continue
            try:
                if read_manifest(folder).created <= current.created:
                    return None
                return Model(folder, self._settings)
            except ArtifactError as error:
                self._note_broken(folder, error)
                raise
        return None

    async def watch(
        self, interval_s: float, current: Callable[[], Model], swap: Callable[[Model], None], count: Callable[[str], None]
    ) -> None:
        """Look for a newer version every ``interval_s`` seconds, load it in a thread and hand it over. Runs until cancelled.

        Whatever goes wrong, the version in service stays. ``count`` is told "loaded" or "failed".
        """
        while True:
            await asyncio.sleep(interval_s)
            result: Literal["loaded", "failed"] = "loaded"
            try:
                model = await asyncio.to_thread(self.load_newer, current().manifest)
                if model is None:
                    continue
                swap(model)
            except ArtifactError:
                result = "failed"
            except OSError as error:
                log.error("model repository %s cannot be read: %s", self.folder, error.strerror)
                result = "failed"
            count(result)

    def _folders(self) -> list[Path]:
        """Return the version folders, newest manifest first, unreadable ones last."""

        def created(folder: Path) -> str:
            try:
                return read_manifest(folder).created
            except ArtifactError:
                return ""

        folders = [path for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        return sorted(folders, key=lambda folder: (created(folder), folder.name), reverse=True)

    def _note_broken(self, folder: Path, error: ArtifactError) -> None:
        self._broken[folder.name] = _stamp(folder)
        log.error("model version %s is not served: %s", folder.name, error)


def _stamp(folder: Path) -> int:
    try:
        return (folder / "manifest.json").stat().st_mtime_ns
    except OSError:
        return 0
