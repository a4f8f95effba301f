#!/usr/bin/env bash
# Create .venv beside this project and install it there, with the tested versions.
set -euo pipefail
usage="usage: scripts/setup.sh [EXTRA[,EXTRA…]]      (PBVF_VENV names another folder than .venv)"
case "${1:-}" in
  -h | --help) echo "$usage" && exit ;;
  -*) echo "error: $1: there is no such option; $usage" >&2 && exit 2 ;;
esac
[ $# -le 1 ] || { echo "error: extras are separated by commas; $usage" >&2 && exit 2; }
cd "$(dirname "$0")/.."

venv="${PBVF_VENV:-.venv}"
find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
    if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "error: Python 3.11 or newer is needed and was not found; install it or set PYTHON" >&2
  return 1
}

if [ ! -x "$venv/bin/python" ]; then
  python="$(find_python)"
  "$python" -m venv "$venv" || {
    echo "error: $python cannot make a virtual environment; on Debian or Ubuntu: apt install python3-venv" >&2
    exit 1
  }
fi
extras="${1:+[$1]}"
echo "installing into $venv: some minutes the first time, torch is large" >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  --constraint constraints.txt --editable ".$extras"
echo "installed; next: . $venv/bin/activate" >&2
