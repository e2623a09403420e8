# syntax=docker/dockerfile:1
# The daemon beside a broker.  It must run as the broker's uid, or it may not hard-link the broker's segments
# (fs.protected_hardlinks): docker build --build-arg UID=1000 --build-arg GID=1000 .
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS build
ARG UV_VERSION=0.13.8
ENV UV_PROJECT_ENVIRONMENT=/opt/tiersidecar \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy \
    UV_PYTHON_DOWNLOADS=never
RUN python -m pip install --no-cache-dir "uv==${UV_VERSION}"
WORKDIR /src
# The libraries first: a change of our own code alone leaves their layer as it is.
COPY pyproject.toml uv.lock README.md ./
RUN uv sync --frozen --no-dev --no-install-project
COPY tiersidecar ./tiersidecar
RUN uv sync --frozen --no-dev --no-editable

FROM python:${PYTHON_VERSION}-slim
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
