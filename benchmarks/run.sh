#!/usr/bin/env bash
# Makes all figures of docs/performance.rst, in about twenty minutes: see README.md. The last part needs root, and more.
#   bash benchmarks/run.sh [FOLDER]     FOLDER: where the figures go (default docs/figures)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

figures=${1:-docs/figures}
mkdir -p "$figures"
export OMP_NUM_THREADS=1  # the ranks are the parallelism

cmake -S . -B build/geometry -DDISTDL_GEOMETRY_TESTS_ONLY=ON -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build/geometry --target geometry_benchmark >/dev/null
build/geometry/geometry_benchmark | tee "$figures/geometry.txt"
mpiexec -n 2 python -m mpi4py benchmarks/primitives.py --json "$figures/primitives.json"
mpiexec -n 2 python -m mpi4py benchmarks/overlap.py --json "$figures/overlap.json"
mpiexec -n 2 python -m mpi4py benchmarks/convolution.py --json "$figures/convolution.json"
python benchmarks/two_hosts.py benchmarks/ping_pong.py | tee "$figures/ping_pong.txt"
python benchmarks/two_hosts.py benchmarks/overlap.py --wire --size 8M --json "$figures/two_hosts.json"
