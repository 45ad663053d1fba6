"""The model repository on disk: which version to serve, and whether another one has been published or promoted."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from lpc.errors import ArtifactError, LpcError
from lpc.model.artifact import MANIFEST, Manifest, read_manifest
from lpc.model.inference import Model
from lpc.model.session import InferenceSettings, ProviderError
from lpc.model.versions import PROMOTED, Promotion, candidates, newest_first, read_promotion

log = logging.getLogger(__name__)

LoadModel: TypeAlias = Callable[[Path, InferenceSettings], Model]
"""Loads a model from a version's folder. Raises ArtifactError or ProviderError."""


class ModelRepository:
    """Versions of one model: folders ``<root>/<name>/<version>/``."""

    def __init__(self, root: Path, name: str, settings: InferenceSettings, load: LoadModel = Model) -> None:
        self.folder = root / name
        self._settings = settings
        self._load = load
        # Time stamps of versions and promotions that failed: they are tried again only after a change.
        self._broken: dict[str, int] = {}

    def load_newest(self) -> Model:
        """Load the first of `candidates` that can be loaded.

        Raises:
            ArtifactError: the promotion cannot be read, or no version can be loaded; the message is about the first one.
            ProviderError: CUDA is configured but not usable.
        """
        first_error: ArtifactError | None = None
        for folder in candidates(self.folder):
            try:
                return self._load(folder, self._settings)
            except ArtifactError as error:
                self._note_broken(folder, error)
                first_error = first_error or error
        raise first_error or ArtifactError(f"{self.folder} does not contain a version: create one with `lpc export`")

    def load_newer(self, current: Manifest) -> Model | None:
        """Load the promoted version, or the newest if none is promoted; None: that version is ``current``.

        If the promotion fails, the current version stays: the operator may have promoted an older one to avoid the newest.

        Raises:
            ArtifactError, ProviderError: the version cannot be loaded, or the promotion cannot be read. It is tried again only
                after its file has changed.
        """
        path = self.folder / PROMOTED
        try:
            promotion = read_promotion(self.folder)
        except ArtifactError as error:
            if self._is_broken(path):
                return None
            self._note_broken(path, error)
            raise
        if promotion is not None:
            return self._load_promoted(promotion, current)
        for folder in newest_first(self.folder):
            if self._is_broken(folder):
                continue
            try:
                if read_manifest(folder).created <= current.created:
                    return None
                return self._load(folder, self._settings)
            except (ArtifactError, ProviderError) as error:
                self._note_broken(folder, error)
                raise
        return None

    def _load_promoted(self, promotion: Promotion, current: Manifest) -> Model | None:
        folder = self.folder / promotion.version
        if self._is_broken(folder):
            return None
        try:
            if read_manifest(folder) == current:
                return None
            return self._load(folder, self._settings)
        except (ArtifactError, ProviderError) as error:
            self._note_broken(folder, error)
            raise

    def _is_broken(self, path: Path) -> bool:
        return self._broken.get(path.name) == _stamp(path)

    def _note_broken(self, path: Path, error: LpcError) -> None:
        self._broken[path.name] = _stamp(path)
        if path.name == PROMOTED:
            log.error("the promotion is ignored: %s", error)
        else:
            log.error("model version %s is not served: %s", path.name, error)


def _stamp(path: Path) -> int:
    """Return the time stamp of a version's manifest or of the promotion's file; 0: it is missing."""
    try:
        return (path if path.name == PROMOTED else path / MANIFEST).stat().st_mtime_ns
    except OSError:
        return 0
