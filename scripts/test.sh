#!/usr/bin/env bash
# Set up and pass every check: lint, format, types, import contracts, tests.
# Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh test
bin="$PWD/${PBVF_VENV:-.venv}/bin"
case "${PBVF_VENV:-}" in /*) bin="$PBVF_VENV/bin" ;; esac
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mdformat" --check README.md CHANGELOG.md docs/*.md docs/results/README.md docs/results/fig-lqr/README.md
"$bin/mypy"
"$bin/lint-imports"
"$bin/python" -m pytest "$@"
