#!/usr/bin/env bash
# Runs one command on every worker of a TPU VM or pod slice. A pod hangs when only one worker runs: use this.
#
#   scripts/pod.sh NAME ZONE python -m experiments.bert_base --data.path=gs://BUCKET/records \
#       --output=gs://BUCKET/bert_base --hosts.distributed=True
#
# The first use of a TPU: scripts/pod.sh NAME ZONE --install copies this checkout and installs it with the tpu extra.
# The same command again goes on from the newest checkpoint; after a preemption, create the TPU again and repeat both.
set -euo pipefail
if [ $# -lt 3 ]; then
  sed -n '2,9p' "$0" >&2
  exit 2
fi
name=$1 zone=$2
shift 2
cd "$(dirname "$0")/.."
on_all() { gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="$1"; }

if [ "$1" = --install ]; then
  archive=$(mktemp --suffix=.tar.gz)
  trap 'rm -f "$archive"' EXIT
  git archive --format=tar.gz -o "$archive" HEAD
  gcloud compute tpus tpu-vm scp "$archive" "$name:/tmp/plm_jax.tar.gz" --zone="$zone" --worker=all
  on_all 'mkdir -p ~/plm_jax && tar xzf /tmp/plm_jax.tar.gz -C ~/plm_jax && cd ~/plm_jax &&
    python3 -m venv .venv && .venv/bin/pip install -q -e ".[tpu]" && .venv/bin/python -c "import jax; print(jax.__version__)"'
  exit
fi
printf -v command '%q ' "$@"
on_all "cd ~/plm_jax && PATH=\$PWD/.venv/bin:\$PATH $command"
