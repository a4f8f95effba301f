#!/usr/bin/env bash
# Set up and run the main job: collect, fit a critic, synthesize policies, evaluate them.
# Results go to quickstart-out/ (or the folder given). Safe to stop and run again.
set -euo pipefail
usage="usage: scripts/quickstart.sh [FOLDER]      (PBVF_VENV names another folder than .venv)"
case "${1:-}" in
  -h | --help) echo "$usage" && exit ;;
  -*) echo "error: $1: a folder's name may not begin with '-'; $usage" >&2 && exit 2 ;;
esac
[ $# -le 1 ] || { echo "error: one folder, and nothing else; $usage" >&2 && exit 2; }
out="$(realpath -m -- "${1:-$(dirname "$0")/../quickstart-out}")" # as the caller's folder has it
cd "$(dirname "$0")/.."
scripts/setup.sh
exec "${PBVF_VENV:-.venv}/bin/pbvf" quickstart --out "$out"
