#!/bin/sh
# Table 3: alpha of different drafts.
#   scripts/reproduce_table3.sh [RUN_DIR] [more flags of specdec reproduce]
# LEVEL=paper takes the paper's own models; see gin/runs/reproduce_paper.gin for its flags.
set -e
run_dir=${1:-runs/${LEVEL:-embedded}}
[ $# -eq 0 ] || shift
exec specdec reproduce --level="${LEVEL:-embedded}" --only=rates --run_dir="$run_dir" "$@"
