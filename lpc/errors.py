"""The errors that a user, a caller or an operator can cause: shown as one line, never as a traceback.

    LpcError
    ├── UsageError              an option, an argument or a setting cannot be used as given; exit code 2, of all others 1
    │   └── SimulationError     lpc.simulator.amounts: a simulation cannot be run as asked
    ├── InvalidRequest          a conversation that can never be answered as it is
    ├── ArtifactError           a model artefact is missing, corrupted or unfit
    ├── ProviderError           lpc.model.session: CUDA is asked for and cannot be used
    ├── CertificateError        lpc.wire.certificates: a certificate, key or token cannot be used
    ├── TraceError              lpc.logs.traces.request: a log cannot be read
    ├── DatasetError            lpc.logs.records: a dataset cannot be read
    ├── ServiceError            predictor_service.errors, where its own tree is drawn: what a call to the sidecar meets
    ├── StartError              predictor_service.errors: the sidecar cannot start
    ├── ForeignFolder           predictor_service.own_folder: a folder that must be the sidecar's own is another user's
    ├── TracingError            predictor_service.rpc.tracing: traces are asked for and cannot be made
    ├── TokenizerError          predictor_service.requests.loading: a tokenizer cannot be read
    ├── OfferRefused            predictor_service.requests.offered: the tokenizer that an engine offers is not taken
    ├── TokenFileError          lpc.wire.tokens: the token file cannot be used
    ├── BadTarget               lpc.wire.raw_path: a request's path or query cannot be forwarded
    ├── CacheError              lpc.cache.client: a call to the response caches failed
    ├── WarmError               lpc.cache.warming: the caches cannot be warmed
    ├── GatewayStartError       lpc.gateway.errors: the gateway cannot start
    ├── SaltKeyError            lpc.gateway.clients: the file of the salts' key cannot be used
    ├── KeyFileError            lpc.responses.sealing: the key file of the response caches cannot be used
    ├── PairsError              lpc.responses.semantic.calibration: a file of labelled pairs cannot be read
    ├── EvidenceError           lpc.responses.semantic.evidence_file: a file of evidence cannot be used
    ├── RedisFailed             lpc.wire.redis_reach: a Redis did not do as asked; never shown, a lookup is then a miss
    │   ├── RedisAway           lpc.wire.redis_reach: it does not answer
    │   └── RedisRefused        lpc.wire.redis_reach: it refused one command
    ├── ClientError             eviction_client.errors, where its own tree is drawn: engines and stores
    ├── LMCacheUnfit            lpc.lmcache.settings: LMCache is missing, or configured so that nothing can be done from outside
    ├── EncoderError            lpc.training.encoders.encoder: an encoder cannot be loaded
    ├── EmbeddingError          lpc.training.embedding: turns cannot be embedded or read again
    ├── HeadError               lpc.training.head_file: a head cannot be trained or read
    ├── ExportError             lpc.training.export: an artefact cannot be made
    ├── ClusterError            lpc.training.spread: work cannot be spread over processes or a cluster
    ├── LabelLogError           lpc.training.label_log: a label log cannot be read
    │   └── TooFewTurnsError    lpc.training.label_log: there are too few turns to train on yet
    ├── KVEventsError           lpc.simulator.kv_events: the events of an engine cannot be read
    ├── ReportError             lpc.commands.report: metrics cannot be had, or nothing was counted
    └── PredictError            lpc.commands.predict: the input or the sidecar of `lpc predict` is at fault
        └── Refused             lpc.commands.predict: one conversation cannot be answered, others can

Each message says what was wrong and what to do, and holds no text of a conversation.
"""


class LpcError(Exception):
    """Base of every error that a user can cause and fix."""


class UsageError(LpcError):
    """An option, an argument or a setting cannot be used as given."""


class InvalidRequest(LpcError):
    """The request can never succeed as it is."""


class ArtifactError(LpcError):
    """A model artefact is missing, corrupted or unfit for what asked for it."""
