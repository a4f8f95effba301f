#!/usr/bin/env bash
# Install each extra alone into an environment of its own, use it once, and run its own tests.
# Usage: scripts/extras.sh [EXTRA…]     (without a name: all extras of pyproject.toml)
# What a plain installation brings is installed once and lies under each of these environments, so
# pip decides for each extra alone what else it needs and which versions it replaces. torch comes
# with CUDA unless PIP_CONSTRAINT or another setting of pip's says otherwise.
# Each environment is deleted at its end. Exit 1 when something failed; the last lines say what.
set -uo pipefail
cd "$(dirname "$0")/.."
root="$PWD" python="${PYTHON:-python3}"
export PYTHONPATH="$root/tests" OMP_NUM_THREADS=1 AWS_ACCESS_KEY_ID=none AWS_SECRET_ACCESS_KEY=none
nobody=http://127.0.0.1:9 # where nobody answers: a package that is there ends with 10

extras() {
  "$python" -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); print(*p["project"]["optional-dependencies"])'
}

pbvf() { # of the environment on PATH
  python -m pbvf_cli "$@"
}

ends_with() { # CODE COMMAND…
  local wanted="$1" code=0
  shift
  "$@" || code=$?
  [ "$code" = "$wanted" ] || { echo "ended with $code, not $wanted: $*" >&2; return 1; }
}

environment() { # NAME OPTION…: from an episode to a measurement in one of another package
  pbvf collect "$1" "${@:2}" --dataset lab/e-v0 --steps 60 --perturb-every 10 -q &&
    pbvf fit-critic lab/e-v0 --critic psvf --updates 3 --out critic -q &&
    pbvf synthesize critic --from-scratch 1 --steps 2 --out grown --evaluate --env "$1" --episodes 1 -q &&
    pbvf evaluate grown --env "$1" --episodes 1 -q
}

use() { # EXTRA: one thing that a user installs it for, in an empty folder
  pbvf collect toyenv:Toy-v0 --dataset lab/x-v0 --episodes 3 --seed 0 --license MIT -q &&
    pbvf policies export lab/x-v0 --index 0 --out p.safetensors -q || return 1
  case "$1" in
  video) pbvf evaluate p.safetensors --env toyenv:Toy-v0 --video film.mp4 --episodes 1 -q && pbvf evaluate p.safetensors --env toyenv:Toy-v0 --video film.gif --episodes 1 -q ;;
  baselines) python -c 'import gymnasium, pbvf_offline as p, stable_baselines3 as s; e = gymnasium.make("InvertedPendulum-v5"); print(p.from_sb3(s.PPO("MlpPolicy", e), e).spec)' ;;
  d3rlpy) python -c 'from pbvf_experiments.offline.baselines import require_d3rlpy; require_d3rlpy(); import d3rlpy; print(d3rlpy.__version__)' ;;
  s3) AWS_ENDPOINT_URL=$nobody ends_with 10 pbvf push lab/x-v0 s3://lab/x -q ;;
  gcs) STORAGE_EMULATOR_HOST=$nobody GCSFS_RETRIES=1 ends_with 10 pbvf pull gs://lab/x lab/y-v0 -q ;;
  hub) HF_ENDPOINT=$nobody ends_with 10 pbvf pull hf://datasets/lab/x lab/y-v0 -q ;;
  sign) pbvf dataset keygen key -q && pbvf dataset sign lab/x-v0 --key key -q && pbvf dataset check-signature lab/x-v0 --key key.pub -q ;;
  onnx) pbvf policies export p.safetensors --out p.onnx -q && pbvf verify p.onnx -q ;;
  wandb) pbvf fit-critic lab/x-v0 --critic psvf --updates 3 --out critic --log-dir log --logger wandb -q && find log -name 'offline-run-*' | grep . ;;
  trackio) pbvf fit-critic lab/x-v0 --critic psvf --updates 3 --out critic --log-dir log --logger trackio -q && TRACKIO_DIR=log/logs/trackio python -c 'from trackio.fragments import import_inbox_dir; assert import_inbox_dir()' && TRACKIO_DIR=log/logs/trackio trackio list runs --project pbvf | grep log ;;
  ray) pbvf collect LQR-v0 --dataset lab/y-v0 --episodes 3 --seed 0 --ray local --workers 1 -q ;;
  robotics) environment gymnasium_robotics:FetchReach-v4 --wrapper flatten-observation && rm -r critic grown "$MINARI_DATASETS_PATH/lab/e-v0" && environment gymnasium_robotics:PointMaze_UMaze-v3 --wrapper flatten-observation ;;
  dm-control) environment shimmy:dm_control/cartpole-balance-v0 --wrapper flatten-observation --max-episode-steps 20 ;;
  minigrid) environment minigrid:MiniGrid-Empty-5x5-v0 --wrapper 'select-observation:{"keys": ["direction", "image"]}' --max-episode-steps 20 ;;
  docs) (cd "$root" && NO_MKDOCS_2_WARNING=1 python -m mkdocs build --quiet --strict --site-dir "$OLDPWD/site") && ls site/index.html ;;
  report) pbvf report lab/x-v0 --out page.html -q ;;
  test) (cd "$root" && ruff check --quiet . && lint-imports >/dev/null && python -m pytest -q --collect-only >/dev/null) ;;
  *) echo "scripts/extras.sh does not know how to use $1" >&2 && return 1 ;;
  esac
}

own_tests() { # EXTRA
  local check=(python -m pytest -q -p no:cacheprovider)
  case "$1" in
  video) "${check[@]}" tests/cli/policies/test_policies.py -k "video or filming" ;;
  baselines) "${check[@]}" tests/exchange/test_stable_baselines.py tests/experiments/test_baselines.py ;;
  d3rlpy) "${check[@]}" tests/experiments/test_offline_rl.py ;;
  s3) "${check[@]}" tests/share/test_remotes_conformance.py tests/share/test_transfer.py -k s3 ;;
  gcs | hub) "${check[@]}" tests/share/test_transfer.py -k "fsspec or gcs" ;;
  sign) "${check[@]}" tests/share/test_signing.py ;;
  onnx) "${check[@]}" tests/exchange/test_exporter.py ;;
  trackio | wandb) "${check[@]}" tests/runs/test_loggers.py ;;
  ray) "${check[@]}" tests/cli/test_ray.py ;;
  robotics) "${check[@]}" tests/cli/test_wrappers.py -k robotics ;;
  dm-control) "${check[@]}" tests/cli/test_wrappers.py -k dm_control ;;
  minigrid) "${check[@]}" tests/cli/test_wrappers.py -k minigrid ;;
  docs) "${check[@]}" tests/test_site.py ;;
  report) "${check[@]}" tests/cli/report/test_report.py ;;
  test) "${check[@]}" tests/test_dependencies.py tests/library/test_registry.py ;;
  esac
}

try() { # EXTRA
  local tools=(pytest) here="$place/$1/here"
  case "$1" in # what its tests need besides
  s3) tools+=("moto[server]" --constraint constraints.txt) ;; # else pip searches for an hour
  baselines) tools+=(onnx onnxruntime) ;;
  esac
  "$python" -m venv "$place/$1" && mkdir "$here" || return 1
  PATH="$place/$1/bin:$PATH"
  (cd "$place/$1"/lib/python3*/site-packages && ls -d "$place"/plain/lib/python3*/site-packages >plain.pth)
  "${install[@]}" ".[$1]" || return 1
  if [ "$1" = d3rlpy ]; then # see pyproject.toml
    "${install[@]}" --no-deps 'd3rlpy>=2.8' || return 1
  fi
  [ "$1" = d3rlpy ] || python -m pip check || return 1
  (cd "$here" && MINARI_DATASETS_PATH="$here/datasets" use "$1" >/dev/null) || return 1
  "${install[@]}" "${tools[@]}" ".[$1]" && own_tests "$1"
}

results=() install=(python -m pip install --quiet --disable-pip-version-check)
if [ $# = 0 ]; then mapfile -d " " -t chosen < <(extras | tr -d "\n"); else chosen=("$@"); fi
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
"$python" -m venv "$place/plain"
(PATH="$place/plain/bin:$PATH" && "${install[@]}" .) || exit 1
for extra in "${chosen[@]}"; do
  echo "== $extra" >&2
  if (try "$extra"); then results+=("$extra: works alone"); else results+=("$extra: FAILED"); fi
  rm -rf "${place:?}/$extra"
done
printf '%s\n' "${results[@]}"
[[ "${results[*]}" != *FAILED* ]]
