# Isotrope as a server of one index: docs/how-to/search-site.md.
#
#   docker build -t isotrope .                                        on CPUs
#   docker build -t isotrope:cuda --build-arg FAISS=gpu .             on one NVIDIA GPU: run with --gpus all
#   docker build -t isotrope --build-arg TORCH_INDEX=https://... .    torch from another index, such as CPU wheels
#
# PyPI's torch contains several gigabytes of CUDA libraries. For an image without them, set TORCH_INDEX to the index of CPU
# wheels from pytorch.org, "Get started". Pass a private index with a password as a secret, which is stored in no layer:
# docker build --secret id=pip,src=$HOME/.config/pip/pip.conf .

# Set a digest (python:3.11-slim-bookworm@sha256:...) for a reproducible image.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG FAISS=cpu
ARG TORCH_INDEX=
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/isotrope
WORKDIR /src
# The largest package, in its own layer, so that changes of Isotrope do not fetch it again.
COPY constraints.txt ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/isotrope/bin/pip install --constraint constraints.txt ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} torch
COPY pyproject.toml README.md LICENSE isotrope.py ./
COPY configs configs
COPY indexer indexer
COPY search search
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/isotrope/bin/pip install --constraint constraints.txt ".[${FAISS},fast,hybrid,mcp,serve]"

FROM ${PYTHON_IMAGE} AS isotrope
# A numeric user, for Kubernetes' runAsNonRoot. It owns only the cache.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin isotrope \
    && install -d -o 10001 -g 10001 -m 0700 /cache
COPY --from=build /opt/isotrope /opt/isotrope
ENV PATH=/opt/isotrope/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ISOTROPE_CACHE=/cache
USER 10001:10001
WORKDIR /
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "from http.client import HTTPConnection; c = HTTPConnection('127.0.0.1', 8080, timeout=4); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["isotrope"]
# Mount /index and /model read-only; /model is the index's model. /cache can be a volume.
CMD ["serve", "/index", "--model", "/model", "--host", "0.0.0.0", "--api-key-file", "/run/secrets/isotrope-api-keys"]
