#!/usr/bin/env bash
# Set up and run the main job: collect, fit a critic, synthesize policies, evaluate them.
# Results go to quickstart-out/ (or the folder given). Safe to stop and run again.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
exec "${PBVF_VENV:-.venv}/bin/pbvf" quickstart --out "${1:-quickstart-out}"
