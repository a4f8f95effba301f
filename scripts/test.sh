#!/usr/bin/env bash
# Set up and pass the checks: lint, format, types, import contracts, documentation, tests.
# Usage: scripts/test.sh [--all] [PYTEST ARGUMENT…]
# --all: also the slow tests, which interrupt commands at every file operation, attack them
# with hostile files and train; as in continuous integration.
# Tests run in two processes; --numprocesses 0 runs them in one.
set -euo pipefail
cd "$(dirname "$0")/.."
chosen=(-m "not slow")
if [ "${1:-}" = --all ]; then
  chosen=()
  shift
fi
scripts/setup.sh test,docs
bin="$PWD/${PBVF_VENV:-.venv}/bin"
case "${PBVF_VENV:-}" in /*) bin="$PBVF_VENV/bin" ;; esac
pages=(*.md docs/*.md docs/{how-to,reference,tutorials}/*.md docs/results/README.md docs/results/fig-lqr/README.md)
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mdformat" --check "${pages[@]}"
"$bin/mypy"
"$bin/lint-imports"
NO_MKDOCS_2_WARNING=1 "$bin/python" -m mkdocs build --strict
"$bin/python" -m pytest --numprocesses 2 --dist loadfile "${chosen[@]}" "$@"
