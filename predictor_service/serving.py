"""The model version in service, and the change to another one while requests go on."""

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
    """Holds the model in service. Requests that were prepared for an earlier one are run by that one."""

    def __init__(self, model: Model, repository: ModelRepository, budget: TokenBudget, metrics: Metrics) -> None:
        self._repository = repository
        self._budget = budget
        self._metrics = metrics
        self._take(model)

    async def look(self) -> None:
        """Look for another version; load it in a thread and serve it. Whatever goes wrong, the version in service stays."""
        try:
            model = await asyncio.to_thread(self._load_newer)
            if model is not None:
                self._take(model)
                self._metrics.reloads.labels("loaded").inc()
        except (ArtifactError, ProviderError):  # the repository has logged why
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

    def _take(self, model: Model) -> None:
        self.model = model
        manifest = model.manifest
        self._metrics.serving(manifest.name, manifest.version, manifest.precision, model.provider)
        log.info("serving %s %s (%s) on %s", manifest.name, manifest.version, manifest.precision, model.provider)
