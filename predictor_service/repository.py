"""The model repository on disk: which version to serve, and whether another was published or promoted."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from lpc.errors import ArtifactError, LpcError
from lpc.model.artifact import MANIFEST, Manifest, read_manifest
from lpc.model.inference import Model
from lpc.model.promotion import PROMOTED, Promotion, read_promotion
from lpc.model.session import InferenceSettings, ProviderError
from lpc.model.versions import candidates, newest_first

log = logging.getLogger(__name__)

LoadModel: TypeAlias = Callable[[Path, InferenceSettings], Model]
"""Makes a model of a version's folder. Raises ArtifactError or ProviderError."""


class ModelRepository:
    """Versions of one model: folders ``<root>/<name>/<version>/``."""

    def __init__(self, root: Path, name: str, settings: InferenceSettings, load: LoadModel = Model) -> None:
        self.folder = root / name
        self._settings = settings
        self._load = load
        # Versions and promotions that could not be followed, with their time stamp: tried again only when it changes.
        self._broken: dict[str, int] = {}

    def load_newest(self) -> Model:
        """Load the promoted version; where none is promoted or it cannot be loaded, the newest that can.

        Raises:
            ArtifactError: there is none; the message is about the first that was tried.
            ProviderError: CUDA was asked for and cannot be used; no version is to blame.
        """
        first_error: ArtifactError | None = None
        try:
            read_promotion(self.folder)
        except ArtifactError as error:
            self._note_broken(self.folder / PROMOTED, error)
        for folder in candidates(self.folder):
            try:
                return self._load(folder, self._settings)
            except ArtifactError as error:
                self._note_broken(folder, error)
                first_error = first_error or error
        raise first_error or ArtifactError(f"{self.folder} has no versions: make one with `lpc export`")

    def load_newer(self, current: Manifest) -> Model | None:
        """Load the promoted version, or the newest where none is promoted, if it is not ``current``; None when it is.

        A promotion that cannot be followed leaves what is served: the newest may be what the operator turned away from.

        Raises:
            ArtifactError, ProviderError: the version cannot be loaded, or the promotion cannot be read. Neither is tried again
                until its file changes.
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
            log.error("the promotion is not followed: %s", error)
        else:
            log.error("model version %s is not served: %s", path.name, error)


def _stamp(path: Path) -> int:
    """Return a time stamp that changes with a version's manifest or the promotion's file; 0 where it is missing."""
    try:
        return (path if path.name == PROMOTED else path / MANIFEST).stat().st_mtime_ns
    except OSError:
        return 0
