#!/usr/bin/env bash
# Decodes on a TPU pod slice: one process a host, which find one another by themselves.
#
#   scripts/run_tpu_pod.sh my-slice us-central2-b /mnt/shared/runs/ende
#
# Change: the pair, the task, BATCH_SIZE (of one host), NUM_SHARDS (a multiple of the hosts).
# RUN_DIR must be a directory that all hosts share; each writes the shards of its own.
set -euo pipefail
slice=${1:?usage: run_tpu_pod.sh SLICE ZONE RUN_DIR [more gin flags]}
zone=${2:?the zone of the slice}
run_dir=${3:?a directory that all hosts share}

flags=(
  --gin_file=runs/infer.gin --gin_file=tasks/wmt14_ende.gin
  --gin.RUN_DIR="'$run_dir'" --gin.MODEL='"/mnt/shared/my_pair"' --gin.DTYPE='"bfloat16"'
  --gin.BATCH_SIZE=32 --gin.MODEL_PARALLEL=1 --gin.NUM_SHARDS=64 "${@:4}"
)
gcloud compute tpus tpu-vm ssh "$slice" --zone="$zone" --worker=all --command="
  pip install --quiet 'specdec_jax[seqio,report]' 'jax[tpu]' &&
  python -m specdec_jax.infer $(printf '%q ' "${flags[@]}")"
