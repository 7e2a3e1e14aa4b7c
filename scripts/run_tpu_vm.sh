#!/usr/bin/env bash
# Decodes on one TPU VM (v4-8, v5e-8): one process, all its chips.
#
#   scripts/run_tpu_vm.sh runs/ende        (a directory; a mounted bucket is one)
#
# Change: the pair, the task, BATCH_SIZE (of all chips together), MODEL_PARALLEL (`specdec plan`).
set -euo pipefail
run_dir=${1:?usage: run_tpu_vm.sh RUN_DIR [more gin flags]}

pip install --quiet 'specdec_jax[seqio,report]' 'jax[tpu]'
python -m specdec_jax.infer \
  --gin_file=runs/infer.gin --gin_file=tasks/wmt14_ende.gin \
  --gin.RUN_DIR="'$run_dir'" --gin.MODEL='"my_pair"' --gin.DTYPE='"bfloat16"' \
  --gin.BATCH_SIZE=32 --gin.MODEL_PARALLEL=1 "${@:2}"
