#!/usr/bin/env bash
# A quarter of an hour on a GPU, by lease (docs/gpu.md): bash benchmarks/gpu_programme.sh A|B|C [--dry] [--out FOLDER]
# The same command again resumes. `python benchmarks/gpu_programme.py pack` makes the folder .lease that must be there.
set -euo pipefail
cd "$(dirname "$0")/.."
export CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
export PYTHONPATH="$PWD/workflow${PYTHONPATH:+:$PYTHONPATH}"
if compgen -G ".lease/wheels/*.whl" >/dev/null && ! python3 -c "import pydantic, safetensors, psutil, yaml" 2>/dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/lease-site .lease/wheels/*.whl
  export PYTHONPATH="$PYTHONPATH:/tmp/lease-site"
fi
exec python3 benchmarks/gpu_programme.py "$@"
