# syntax=docker/dockerfile:1.26@sha256:ecfaec9ed6d810b56388c508f4121597bfbba70d41a6dfeee4d8cad5f295fc32
# The daemon beside a broker.  It must run as the broker's uid, or it may not hard-link the broker's segments
# (fs.protected_hardlinks): docker build --build-arg UID=1000 --build-arg GID=1000 .
#
# Everything is held by a digest.  A newer base image: docker buildx imagetools inspect python:3.12-slim names the digest of its index
# (all platforms); change it here, build, and run the tests.  A tag alone would be whatever a registry answers on the day.
ARG BASE=python:3.12.14-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

FROM ${BASE} AS build
ENV UV_PROJECT_ENVIRONMENT=/opt/tiersidecar \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never
WORKDIR /src
COPY scripts/uv.txt ./
RUN python -m pip install --no-cache-dir --require-hashes -r uv.txt
# The libraries first: a change of our own code alone leaves their layer as it is.  uv.lock has their sums.
COPY pyproject.toml uv.lock README.md sbom.cdx.json ./
RUN uv sync --frozen --no-dev --no-install-project
COPY tiersidecar ./tiersidecar
RUN uv sync --frozen --no-dev --no-editable

FROM ${BASE}
ARG UID=1000
ARG GID=1000
COPY --from=build /opt/tiersidecar /opt/tiersidecar
ENV PATH=/opt/tiersidecar/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TIERSIDECAR_HEALTH_URL=http://127.0.0.1:8091/healthz
USER ${UID}:${GID}
EXPOSE 8090 8091
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['TIERSIDECAR_HEALTH_URL'], timeout=3)"]
ENTRYPOINT ["tiersidecar"]
CMD ["run", "--config", "/etc/tiersidecar/tiersidecar.yaml"]
