#!/bin/sh
# Table 1 and Figures 2 to 4, from theory.
#   scripts/reproduce_theory.sh [RUN_DIR] [more flags of specdec reproduce]
# LEVEL=paper takes the paper's own models; see gin/runs/reproduce_paper.gin for its flags.
set -e
run_dir=${1:-runs/${LEVEL:-embedded}}
[ $# -eq 0 ] || shift
exec specdec reproduce --level="${LEVEL:-embedded}" --only=theory --run_dir="$run_dir" "$@"
