#!/usr/bin/env bash
# Runs what has memory to spoil and threads to race under the compiler's sanitizers. Takes an hour on two cores.
#   bash tests/sanitizers.sh [VENV]     VENV: where tests/run.sh installed what is needed (default build/test-venv)
# The C++ tests of the geometry run under them in tests/run.sh already, and so does the progress thread's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${1:-build/test-venv}
PATH=$(cd "$venv/bin" && pwd):$PATH
build=$PWD/build/sanitized
logs=$build/logs
mkdir -p "$logs"
export OMP_NUM_THREADS=1 PYTHONNOUSERSITE=1

extension() {  # extension NAME SANITIZERS: a build of its own, in a folder for PYTHONPATH
  local folder=$build/$1
  cmake -G Ninja -S . -B "$folder" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="-O1 -g1" -DDISTDL_SANITIZE="$2" \
    -DPython_EXECUTABLE="$(command -v python)" >"$logs/$1-build.txt"
  cmake --build "$folder" >>"$logs/$1-build.txt"
  cmake --install "$folder" --prefix "$folder/site" >>"$logs/$1-build.txt"
  cp -r python/distdl "$folder/site"
}

under() {  # under NAME LIBRARIES N FILES...: pytest on N ranks, with these libraries preloaded
  local preload=
  for library in $2; do preload+="$(c++ -print-file-name="$library") "; done
  timeout --kill-after=20 "${DISTDL_TEST_TIMEOUT:-3600}" mpiexec -n "$3" env PYTHONPATH="$build/$1/site" \
    LD_PRELOAD="$preload" python -m mpi4py -m pytest -p no:faulthandler -o faulthandler_timeout=0 "${@:4}"
}

of_ours() {  # of_ours FILES...: the reports in which the extension stands
  awk -v RS= '/distdl\/_core\./ { print FILENAME ": " $0 "\n"; found = 1 } END { exit found }' "$@"
}

primitives=(test_operators test_start_wait test_halo_exchange test_memory test_staging test_derivatives test_communicators)
files=("${primitives[@]/#/tests/python/}")
files=("${files[@]/%/.py}")

echo '=== address and undefined behaviour: a Python run of the primitives'
extension address "address;undefined"
rm -f "$logs"/address.*
# Leaks are written down and do not end the job: what Python and torch leave behind at their end is not ours. A leak
# that has the extension in its stack is. Frames come from unwinding, as neither Python nor MPI keeps frame pointers.
ASAN_OPTIONS=detect_leaks=1:exitcode=66:fast_unwind_on_malloc=0:malloc_context_size=20:log_path=$logs/address \
  LSAN_OPTIONS=exitcode=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
  under address "libasan.so libubsan.so libstdc++.so" 2 "${files[@]}"
of_ours "$logs"/address.*

echo '=== threads: a Python run of what is started and waited for'
extension thread thread
rm -f "$logs"/thread.*
TSAN_OPTIONS=exitcode=66:suppressions=$PWD/tests/sanitizers/thread.txt:log_path=$logs/thread \
  under thread "libtsan.so libstdc++.so" 2 tests/python/test_start_wait.py
echo '=== nothing was found'
