"""The model in service with the loop that runs it: what predictions need of it, and every other service that embeds text."""

import asyncio
import contextlib
from dataclasses import dataclass

from lpc.model.session import InferenceSettings
from predictor_service.batching.batch_queue import LANES, BatchQueue
from predictor_service.batching.batcher import Batcher
from predictor_service.batching.budget import TokenBudget
from predictor_service.batching.inference import Inference
from predictor_service.metrics import Metrics
from predictor_service.repository import LoadModel, ModelRepository
from predictor_service.returns.learning import ReturnLearning
from predictor_service.serving import Serving
from predictor_service.settings import ServiceSettings


@dataclass(frozen=True)
class ModelLoop:
    """Both parts."""

    serving: Serving
    batcher: Batcher


async def run_model(
    settings: ServiceSettings,
    metrics: Metrics,
    stack: contextlib.AsyncExitStack,
    *,
    load: LoadModel,
    max_batch_items: int,
    returns: ReturnLearning | None = None,
    cached_outputs: int = 0,
    embeddings: bool = False,
) -> ModelLoop:
    """Load the newest version of the model, and run it until ``stack`` is closed.

    Args:
        settings: where the model is, and where it runs.
        metrics: metrics of the process.
        stack: closes the loop.
        load: loads a model from a version's folder.
        max_batch_items: largest number of conversations in a batch.
        returns: predicts reuse groups; None: no groups.
        cached_outputs: number of the model's outputs that are cached, 1 KB each.
        embeddings: whether predictions include embeddings.

    Raises:
        ArtifactError: no version of the model can be loaded.
        ProviderError: CUDA is configured but not usable.
    """
    budget = TokenBudget(settings.max_batch_tokens)
    metrics.batch_token_budget.set_function(lambda: budget.tokens)
    inference_settings = InferenceSettings(settings.provider, settings.threads, settings.cuda_memory_mib)
    repository = ModelRepository(settings.models, settings.model_name, inference_settings, load)
    model = await asyncio.to_thread(repository.load_newest)
    budget.begin(model.provider)
    serving = Serving(model, repository, budget, metrics)
    queue = BatchQueue(settings.max_queue_items, max_batch_items, budget)
    metrics.queue_depth.set_function(lambda: queue.depth)
    metrics.queue_wait.set_function(lambda: queue.wait_s)
    metrics.queue_limit.set(queue.max_items)
    lanes = LANES[model.provider]
    inference = Inference(returns=returns, remembered=cached_outputs, threads=len(lanes))
    batcher = Batcher(queue, inference, metrics, embeddings=embeddings, lanes=lanes)
    stack.push_async_callback(batcher.close)
    return ModelLoop(serving, batcher)
