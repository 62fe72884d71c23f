#!/usr/bin/env bash
# Train two cohorts through the services on a GPU, and print what it cost. Without a GPU: on the CPU, with less.
#
#   benchmarks/gpu_check.sh                          where everything is installed
#   benchmarks/gpu_check.sh --wheels DIR             where only torch and transformers are, and no index can be reached
#   benchmarks/gpu_check.sh --pack DIR --python 3.12 on a machine with an index: fill DIR with what else that Python needs
#
# PYTHON names the interpreter (.venv/bin/python, else python3). --out DIR keeps the runs. See docs/gpu.md.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
[ -n "${PYTHON:-}" ] || [ ! -x .venv/bin/python ] || python=.venv/bin/python
export PYTHONPATH=$PWD:$PWD/services:$PWD/trainer${PYTHONPATH:+:$PYTHONPATH}

case ${1:-} in
--pack)
    shift
    exec "$python" -m benchmarks.gpu.pack "$@"
    ;;
--wheels)
    wheels=${2:?--wheels: name the folder that --pack has filled}
    shift 2
    ls "$wheels"/*.whl >/dev/null || exit 2
    home=$(mktemp -d)
    trap 'rm -rf "$home"' EXIT
    site=$home/site-packages # by this word dill, which datasets hashes with, knows what need not be pickled by value
    # Beside what is there and not into it: a venv would hide the packages of an interpreter that is in one itself.
    "$python" -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
    PYTHONPATH=$PYTHONPATH:$site "$python" -m benchmarks.gpu.check "$@"
    ;;
*)
    exec "$python" -m benchmarks.gpu.check "$@"
    ;;
esac
