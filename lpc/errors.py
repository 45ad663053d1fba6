"""The tree of errors that a user, a caller or an operator can cause. Commands print them as one line without a traceback.

    LpcError
    ├── UsageError              an option, an argument or a setting is invalid; exit code 2 (all others: 1, also of inputs)
    │   └── SimulationError     lpc_apps.simulator.amounts: the options of a simulation are invalid
    ├── ModelConfigError        lpc_apps.simulator.model_forms: the configuration of a model cannot be used
    ├── InvalidRequest          a request that can never succeed
    ├── LockedError             lpc.files: another process changes the same file
    ├── ArtifactError           a model artefact is missing, corrupted or incompatible
    ├── ProviderError           lpc.model.session: CUDA is required but unavailable
    ├── CertificateError        lpc.wire.certificates: a certificate, key or token cannot be used
    ├── TraceError              lpc_apps.logs.records: a log cannot be read
    ├── DatasetError            lpc_apps.logs.records: a dataset cannot be read
    ├── ServiceError            predictor_service.errors, with a tree of its own: a call to the sidecar failed
    ├── StartError              predictor_service.errors: the sidecar cannot start
    ├── ForeignFolder           predictor_service.own_folder: another user owns a folder that must be this user's
    ├── TokenizerError          predictor_service.requests.loading: a tokenizer cannot be read
    ├── OfferRefused            predictor_service.rpc.offers: a tokenizer offered by an engine was rejected
    ├── OfferWaits              predictor_service.requests.uploads: an offered tokenizer is accepted later
    ├── ListenError             lpc.wire.listening: the process cannot listen on an address
    ├── TokenFileError          lpc.wire.tokens: the token file cannot be used
    ├── BadTarget               lpc.wire.raw_path: a request's path or query cannot be forwarded
    ├── CacheError              response_cache.client: a call to the response caches failed
    ├── GatewayStartError       response_cache.gateway.errors: the gateway cannot start
    ├── WarmError               response_cache.gateway.warming: a warm-up cannot go on
    ├── SaltKeyError            response_cache.gateway.clients: the key file for salts cannot be used
    ├── KeyFileError            response_cache.keys.sealing: the key file of the response caches cannot be used
    ├── PairsError              response_cache.semantic.calibration: a file of labelled pairs cannot be read
    ├── EvidenceError           response_cache.semantic.evidence_file: a file of evidence cannot be used
    ├── RedisFailed             lpc.wire.redis_reach: a command to Redis failed; never shown, the lookup is a miss
    │   ├── RedisAway           lpc.wire.redis_reach: Redis does not answer
    │   └── RedisRefused        lpc.wire.redis_reach: Redis rejected one command
    ├── ClientError             eviction_client.errors, with a tree of its own: engines and stores
    ├── LMCacheUnfit            lpc_apps.lmcache.settings: LMCache is missing, or its configuration rules out external control
    ├── EncoderError            lpc_apps.training.encoders.encoder: an encoder cannot be loaded
    ├── EmbeddingError          lpc_apps.training.embedding: embeddings cannot be computed or read
    ├── HeadError               lpc_apps.training.head_file: a head cannot be trained or read
    ├── ExportError             lpc_apps.training.export: an artefact cannot be exported
    ├── WorkerError             lpc_apps.simulator.spread: a process or a cluster that runs simulations failed
    ├── LabelLogError           lpc_apps.training.label_log: a label log cannot be read
    │   └── TooFewTurnsError    lpc_apps.training.label_log: there are too few turns to train on
    ├── ReportError             lpc_cli.report: metrics are unavailable or empty
    └── PredictError            lpc_cli.predict: the input or the sidecar of `lpc predict` is invalid
        └── Refused             lpc_cli.predict: one conversation was rejected; others may succeed

A message states what is wrong and what to do. It contains no text of a conversation.
"""


class LpcError(Exception):
    """Base of every error that a user can cause and fix."""


class UsageError(LpcError):
    """An option, an argument or a setting is invalid."""


class InvalidRequest(LpcError):
    """The request can never succeed."""


class ArtifactError(LpcError):
    """A model artefact is missing, corrupted or incompatible."""
