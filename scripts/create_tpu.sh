#!/usr/bin/env bash
# Creates a TPU VM or pod slice and waits until it is ready.
#
#   scripts/create_tpu.sh NAME ZONE TYPE [--spot]          TYPE: v2-32, v3-8, v4-8, v5litepod-16, v6e-8, ...
set -euo pipefail
if [ $# -lt 3 ]; then
  sed -n '2,5p' "$0" >&2
  exit 2
fi
name=$1 zone=$2 type=$3
shift 3
case $type in
  v2-* | v3-* | v4-*) version=tpu-ubuntu2204-base ;;
  v5litepod-*) version=v2-alpha-tpuv5-lite ;;
  v5p-*) version=v2-alpha-tpuv5 ;;
  v6e-*) version=v2-alpha-tpuv6e ;;
  *) echo "unknown TPU type $type: expected v2-, v3-, v4-, v5litepod-, v5p- or v6e- and a number" >&2; exit 2 ;;
esac
gcloud compute tpus tpu-vm create "$name" --zone="$zone" --accelerator-type="$type" --version="$version" "$@"
