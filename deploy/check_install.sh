#!/usr/bin/env bash
# Executes a pip line of deploy/Dockerfile in a fresh environment, and the command that it installs.
#   deploy/check_install.sh web       the site's image: no torch
#   deploy/check_install.sh worker    the worker's: downloads torch
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?web or worker}
line=$(sed -n "/AS $target\$/,/^USER/p" deploy/Dockerfile | sed -n 's/^RUN pip /pip /p')
index=$(sed -n 's/^ARG TORCH_INDEX=//p' deploy/Dockerfile)
extras=$(sed -n 's/^ARG EXTRAS=//p' deploy/Dockerfile)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
export PATH="$place/venv/bin:$PATH" TORCH_INDEX="${TORCH_INDEX:-$index}" EXTRAS="${EXTRAS:-$extras}"
echo "+ $line"
eval "python -m $line --quiet"
cd "$place"
qualify --version
qualify web --help >/dev/null
qualify canary list
