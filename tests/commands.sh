#!/usr/bin/env bash
# All commands of developers, by name. They take the tools of the environment that is active.
#   bash tests/commands.sh            lists them
#   bash tests/commands.sh NAME ...   runs NAME; what follows is handed on
# N=3 names the number of ranks where a command has no fixed one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMP_NUM_THREADS=1
tests=tests/python

ranks() {  # ranks N ARGUMENTS: pytest on so many ranks, without an end to what takes long
  mpiexec -n "$1" env ${observed:+LD_PRELOAD="$observed"} python -m mpi4py -m pytest -o faulthandler_timeout=36000 "${@:2}"
}

observer() {  # counts MPI's objects and makes its calls fail
  mkdir -p build && mpicxx -std=c++20 -O1 -shared -fPIC -Isrc tests/pmpi/observer.cpp -o build/observer.so
}

case ${1-} in
  build)  # what changed in C++, within a minute or two
    pip install -q --no-build-isolation --no-deps -e . --config-settings cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON ;;
  test)  # FILES: the tests of these files, on N ranks
    mpiexec -n "${N-2}" python -m mpi4py -m pytest "${@:2}" ;;
  layer)  # NAME: all cases of all tests that run the examples of a layer, on N ranks, two minutes
    DISTDL_LAYER=$2 ranks "${N-2}" --whole "$tests"/{nn,misuse,parameters/test_layouts.py} \
      -k "$2 or blocks_of_any_sizes" "${@:3}" ;;
  all)  # what every change has to pass, in environments of its own
    .ci/run ;;
  whole)  # all cases of all tests on ranks of all numbers, hours
    PYTEST_ADDOPTS=--whole DISTDL_TEST_TIMEOUT=36000 bash tests/run.sh ;;
  geometry)  # src/base and src/geometry alone, without torch, MPI and Python, under the sanitizers
    cmake -S . -B build/geometry -DDISTDL_GEOMETRY_TESTS_ONLY=ON -DCMAKE_BUILD_TYPE=Debug \
      -DCMAKE_COMPILE_WARNING_AS_ERROR=ON \
      "-DDISTDL_SANITIZE=address;undefined"
    cmake --build build/geometry && ctest --test-dir build/geometry --output-on-failure ;;
  leaks)  # MPI's objects after 10,000 layers and 100,000 passes
    observer && DISTDL_LEAKS=1 observed=build/observer.so ranks 2 "$tests/process/leaks.py" ;;
  votes)  # how often each layer votes
    observer && observed=build/observer.so ranks 2 "$tests/nn/votes.py" ;;
  faults)  # each MPI call fails once, ten minutes
    observer && python tests/pmpi/faults.py build/observer.so ;;
  sanitizers)  # memory errors of the extension, 12 minutes; needs the environment of tests/run.sh
    bash tests/sanitizers.sh ;;
  memory)  # 300 steps at sizes that people use, up to an hour
    ranks 2 -s "$tests/training/long_runs.py" ;;
  draws)  # 10,000 draws of primitives and 100 of layers that read windows, on N ranks (1 to 12)
    DISTDL_DRAWS=10000 ranks "${N-2}" -s "$tests/primitives/test_random.py"
    DISTDL_DRAWS=100 ranks "${N-2}" -m hypothesis "$tests"/nn/{conv,pooling,test_pad.py,test_upsample.py} ;;
  device)  # on a device of the tests, whose work comes late, on N ranks, three minutes
    python tests/device/build.py && DISTDL_TEST_DEVICE=lagging ranks "${N-2}" --whole "$tests/device" ;;
  gpu)  # [FOLDER]: builds, tests and measures on a GPU without a network, nine minutes; FOLDER has wheels
    bash tests/gpu.sh "${@:2}" ;;
  tools)  # each layer in each of torch's tools, on N ranks, ten minutes
    ranks "${N-2}" --whole "$tests/nn/test_tools.py" ;;
  kills)  # 50 jobs that are killed while they save, five minutes
    DISTDL_KILLS=50 ranks 1 -s "$tests/training/test_kills.py" ;;
  resumes)  # 6,336 runs that go on with other ranks, partitions, layouts and optimizers, half an hour
    DISTDL_RESUMES=0 ranks 4 -s "$tests/training/test_resume.py" ;;
  mutations)  # [N]: N small changes in src and python/distdl (200), and which of them no test finds; hours
    python tests/mutations/run.py "${@:2}" ;;
  matrix)  # TORCH:MPI...: other versions of torch and other MPI libraries, hours
    bash tests/matrix.sh "${@:2}" ;;
  wheels)  # TORCH:MPI...: makes wheels and tests them elsewhere
    bash tests/wheels.sh "${@:2}" ;;
  docs)  # the site, in build/site/index.html
    python -m sphinx -W -b html docs build/site ;;
  benchmarks)  # ten minutes, on a machine that has nothing else to do
    bash benchmarks/run.sh "${@:2}" ;;
  *)
    sed -nE 's/^  ([a-z]+)\)  # (.*)/\1\t\2/p' "$0" | expand -t 14
    [ $# -eq 0 ] ;;
esac
