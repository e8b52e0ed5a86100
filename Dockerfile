# plm_jax on a CPU, or on NVIDIA GPUs with EXTRA=cuda:
#
#   docker build -t plm-jax .
#   docker run --rm -v "$PWD:/work" plm-jax train bert_base --scale=laptop
#
#   docker build --build-arg EXTRA=cuda -t plm-jax:cuda .
#   docker run --rm --gpus=all --ipc=host -v "$PWD:/work" plm-jax:cuda doctor
#
# The image needs no CUDA of its own: it comes with JAX's wheels, and the driver with the NVIDIA Container Toolkit. Runs and
# the cache are in the folder that is mounted at /work. --user="$(id -u):$(id -g)" makes its files yours.
FROM python:3.13-slim
ARG EXTRA=""
WORKDIR /opt/plm_jax
COPY setup.cfg pyproject.toml MANIFEST.in README.md LICENSE ./
COPY plm_jax plm_jax
# A folder has no version to pin.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ".${EXTRA:+[$EXTRA]}"
ENV PLM_JAX_CACHE=/work/.cache/plm_jax HF_HOME=/work/.cache/huggingface HOME=/tmp
WORKDIR /work
# Not through a shell: signals reach the run, which saves and ends with status 75.
ENTRYPOINT ["plm-jax"]
CMD ["--help"]
