#!/bin/sh
# Table 2 and the table of appendix A.3: speed.
#   scripts/reproduce_table2.sh [RUN_DIR] [more flags of specdec reproduce]
# LEVEL=paper takes the paper's own models; see gin/runs/reproduce_paper.gin for its flags.
set -e
run_dir=${1:-runs/${LEVEL:-embedded}}
[ $# -eq 0 ] || shift
exec specdec reproduce --level="${LEVEL:-embedded}" --only=speed --run_dir="$run_dir" "$@"
