#!/usr/bin/env bash
# Decodes on a host with NVIDIA GPUs: one process, all of them.
#
#   scripts/run_gpu_host.sh runs/ende
#
# Change: the pair, the task, BATCH_SIZE (of all GPUs together), MODEL_PARALLEL (`specdec plan`).
# Several hosts: the same on each, with --coordinator_address=HOST:PORT --process_count=N
# --process_index=I behind it.
set -euo pipefail
run_dir=${1:?usage: run_gpu_host.sh RUN_DIR [more flags]}

pip install --quiet 'specdec_jax[seqio,report]' 'jax[cuda12]'
python -m specdec_jax.infer \
  --gin_file=runs/infer.gin --gin_file=tasks/wmt14_ende.gin \
  --gin.RUN_DIR="'$run_dir'" --gin.MODEL='"my_pair"' --gin.DTYPE='"bfloat16"' \
  --gin.BATCH_SIZE=8 --gin.MODEL_PARALLEL=1 "${@:2}"
