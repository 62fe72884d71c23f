# The trainer of one cohort member; vLLM is not in it. GPU hosts build on a PyTorch CUDA runtime; for a CPU host:
#
#   docker build -f docker/trainer.Dockerfile --build-arg BASE=python:3.11-slim-bookworm \
#       --build-arg TORCH=torch==2.13.0+cpu -t corl-trainer:cpu .
#
# TORCH is installed first, from the `wheels` build context (--build-context wheels=DIR) or else from TORCH_INDEX.
ARG BASE=pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime

# A folder of wheels may stand in for this stage as a named build context.
FROM scratch AS wheels

FROM ${BASE} AS build
ARG EXTRAS=trainer
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
LABEL org.opencontainers.image.title="corl-trainer" \
      org.opencontainers.image.description="GRPO of one cohort member on rewards from its peers' judges" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/corl /opt/corl
# A named volume takes its owner from the folder that it is mounted on.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp/home corl && \
    mkdir -p /weights /runs /models && chown corl:corl /weights /runs /models
ENV PATH=/opt/corl/bin:$PATH HOME=/tmp/home HF_HOME=/models MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER corl
WORKDIR /runs
# A trainer answers no requests: it has ended, or it runs and its judge knows by its lease.
HEALTHCHECK NONE
ENTRYPOINT ["corl"]
CMD ["train", "--help"]
