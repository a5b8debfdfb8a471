#!/usr/bin/env bash
# Builds, tests and measures on a machine with a GPU and without a network, in nine minutes, and prints a table.
#   bash tests/gpu.sh [FOLDER]    FOLDER: wheels of what the machine lacks, with an MPI library (default build/wheelhouse)
# python3 (PYTHON names another) has torch, numpy, pybind11, scikit-build-core, cmake and ninja; mpi4py, mpich,
# safetensors and the tests' pytest, pytest-mpi, hypothesis and expecttest may come from the folder:
#   pip download --no-deps -d build/wheelhouse mpich==5.0.2 pytest-mpi expecttest
# DISTDL_TEST_DEVICE=lagging tries this script where no GPU is, with the device of tests/device.
# The log of each row is in build/gpu. Exits with 1 if any row fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export DISTDL_TEST_DEVICE=${DISTDL_TEST_DEVICE:-cuda}
export OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1
wheels=${1:-build/wheelhouse} logs=build/gpu failed=0 end=$((SECONDS + ${DISTDL_TEST_TIMEOUT:-540}))
mkdir -p $logs
rows=()

row() {  # row NAME COMMAND...: goes on after a failure, as a machine with a GPU is seldom at hand
  local start=$SECONDS result=passed log=$logs/${1//[^a-z0-9]/-}.log
  timeout --kill-after=10 $((end > SECONDS ? end - SECONDS : 1)) "${@:2}" >"$log" 2>&1 || { result="failed: $?"; failed=1; }
  rows+=("$1 | $result | $(grep -aoE '[0-9]+ (passed|failed)[^=]*' "$log" | tail -1) | $((SECONDS - start)) s")
  printf '%s\n' "${rows[-1]}"
  [ "$result" = passed ] || tail -n 30 "$log"
}

ranks() {
  mpiexec -n "$1" python -m mpi4py "${@:2}"
}

install() {  # in an environment of its own, which sees the packages of python3's, itself an environment or not
  local python=${PYTHON:-python3} venv=$PWD/build/gpu-venv packages
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && "$python" -m venv "$venv" || return
  echo "$packages" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/packages.pth"
  PATH=$venv/bin:$(dirname "$(command -v "$python")"):$PATH
  if compgen -G "$wheels/*.whl" >/dev/null; then
    python -m pip install -q --no-index --no-deps --ignore-installed "$wheels"/*.whl || return
  fi
  CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) python -m pip install -q --no-index --no-build-isolation --no-deps .
}

device() {
  "${PYTHON:-python3}" - "$DISTDL_TEST_DEVICE" <<'END'
import sys, torch
device = torch.accelerator.current_accelerator(check_available=True)
if device is None or device.type != sys.argv[1]:
    sys.exit(f"torch {torch.__version__} finds the accelerator {device}, and no {sys.argv[1]}")
print(torch.__version__, device)
END
}
export -f ranks install device
export wheels

if [ "$DISTDL_TEST_DEVICE" != lagging ]; then
  row "device" bash -c device
  [ $failed = 0 ] || exit 1  # before anything is built
fi
row "build" bash -c install
export PATH=$PWD/build/gpu-venv/bin:$PATH
[ "$DISTDL_TEST_DEVICE" != lagging ] || row "device" python tests/device/build.py
row "four networks, 2 ranks" bash -c 'ranks 2 -m pytest -q tests/python/device/test_networks.py'
row "messages and layers, 2 ranks" bash -c 'ranks 2 benchmarks/gpu.py'
row "four networks, 4 ranks" bash -c 'ranks 4 -m pytest -q tests/python/device/test_networks.py'
row "operators, 2 ranks" bash -c 'ranks 2 -m pytest -q tests/python/device/test_primitives.py'
row "layers, checkpoints, replicas, 2 ranks" bash -c 'DISTDL_SEED=gpu ranks 2 -m pytest -q tests/python/device/test_layers.py tests/python/device/test_where.py'
row "second derivatives, autocast, 2 ranks" bash -c 'DISTDL_SEED=gpu ranks 2 -m pytest -q tests/python/device/test_second_derivatives.py tests/python/device/test_autocast.py'
row "operators, 3 ranks" bash -c 'ranks 3 -m pytest -q tests/python/device/test_primitives.py'
printf '\n%s\n' "$(tail -n 1 $logs/device.log)"
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
fi
printf '%s\n' "${rows[@]}"
cat $logs/messages-and-layers--2-ranks.log
exit $failed
