#!/usr/bin/env bash
# Set up and run the main job: collect, fit a critic, synthesize policies, evaluate them.
# Results go to quickstart-out/ (or the folder given). Safe to stop and run again.
set -euo pipefail
usage="usage: scripts/quickstart.sh [FOLDER]      (PBVF_VENV names another folder than .venv)"
case "${1:-}" in
  -h | --help) echo "$usage" && exit ;;
  -*) echo "error: $1: a folder's name may not begin with '-'; $usage" >&2 && exit 2 ;;
esac
cd "$(dirname "$0")/.."
scripts/setup.sh
exec "${PBVF_VENV:-.venv}/bin/pbvf" quickstart --out "${1:-quickstart-out}"
