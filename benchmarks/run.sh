#!/usr/bin/env bash
# Makes the figures of docs/performance.rst, in less than ten minutes: see README.md. The wire needs root, and more.
#   bash benchmarks/run.sh [FOLDER [convolution]]   FOLDER: where the figures go (default docs/figures)
#                                                   convolution: these instead, in five minutes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

figures=${1:-docs/figures}
mkdir -p "$figures"
export OMP_NUM_THREADS=1  # the ranks are the parallelism

if [ "${2:-}" = convolution ]; then
  exec mpiexec -n 2 python -m mpi4py benchmarks/convolution.py --json "$figures/convolution.json"
fi
cmake -S . -B build/geometry -DDISTDL_GEOMETRY_TESTS_ONLY=ON -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build/geometry --target geometry_benchmark >/dev/null
build/geometry/geometry_benchmark | tee "$figures/geometry.txt"
mpiexec -n 2 python -m mpi4py benchmarks/primitives.py --seconds 240 --json "$figures/primitives.json"
mpiexec -n 2 python -m mpi4py benchmarks/overlap.py --seconds 2 --json "$figures/overlap.json"
python benchmarks/emulated_hosts.py benchmarks/ping_pong.py | tee "$figures/ping_pong.txt"
python benchmarks/emulated_hosts.py benchmarks/overlap.py --wire --size 8M --seconds 3 --json "$figures/two_hosts.json"
