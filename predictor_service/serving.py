"""The served model version, and its replacement while requests are running."""

import asyncio
import logging

from lpc.errors import ArtifactError
from lpc.model.inference import Model
from lpc.model.session import ProviderError
from predictor_service.batching.budget import TokenBudget
from predictor_service.metrics import Metrics
from predictor_service.repository import ModelRepository

log = logging.getLogger(__name__)


class Serving:
    """Holds the served model. Requests that were prepared for an earlier version are run by that version."""

    def __init__(self, model: Model, repository: ModelRepository, budget: TokenBudget, metrics: Metrics) -> None:
        self._repository = repository
        self._budget = budget
        self._metrics = metrics
        self._serve(model)

    async def reload(self) -> None:
        """Load another version in a thread if there is one, and serve it. After an error the current version stays."""
        try:
            model = await asyncio.to_thread(self._load_newer)
            if model is not None:
                self._serve(model)
                self._metrics.reloads.labels("loaded").inc()
        except (ArtifactError, ProviderError):  # the repository has logged the reason
            self._metrics.reloads.labels("failed").inc()
        except OSError as error:
            log.error("model repository %s cannot be read: %s", self._repository.folder, error.strerror)
            self._metrics.reloads.labels("failed").inc()
        except Exception:
            self._metrics.reloads.labels("failed").inc()
            raise

    def _load_newer(self) -> Model | None:
        model = self._repository.load_newer(self.model.manifest)
        if model is not None:
            self._budget.begin(model.provider)
        return model

    def _serve(self, model: Model) -> None:
        self.model = model
        manifest = model.manifest
        self._metrics.serving(manifest.name, manifest.version, manifest.precision, model.provider)
        log.info("serving %s %s (%s) on %s", manifest.name, manifest.version, manifest.precision, model.provider)
