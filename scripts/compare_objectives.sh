#!/usr/bin/env bash
# Distils the same draft by each objective, a thousand steps each, and prints a table of alpha.
#
#   scripts/compare_objectives.sh runs/objectives [more gin flags]
#
# The target's samples and probabilities are made once, for all; what that and a step cost says
# gin/runs/distill.gin. Called again, it goes on where it was.
set -euo pipefail
output=${1:?usage: compare_objectives.sh OUTPUT_DIR [more gin flags]}

runs=()
for objective in forward_kl reverse_kl total_variation jensen_shannon; do
  specdec distill --gin_file=runs/distill.gin --gin_file=models/debian_draft.gin \
    --gin.RUN_DIR="'$output/$objective'" --gin.TEACHER_DIR="'$output/teacher'" \
    --gin.OBJECTIVE="'$objective'" --gin.TOTAL_STEPS=1000 --gin.DECAY_STEPS=900 \
    --gin.EXAMPLES='{"restore": 16384, "ende": 8192, "synopsis": 8192}' "${@:2}"
  runs+=("$output/$objective")
done
python -m specdec_jax.distill_table "${runs[@]}"
