#!/usr/bin/env bash
# The primitives' tests on 2 ranks, with the extension under the address, undefined-behaviour and leak sanitizers.
#   bash tests/sanitizers.sh [VENV]     VENV: where tests/run.sh installed what is needed (default build/test-venv)
# What has no Python in it runs under them in tests/run.sh: the geometry, and the progress thread, which runs under the
# thread sanitizer too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${1:-build/test-venv}
PATH=$(cd "$venv/bin" && pwd):$PATH
build=$PWD/build/sanitized
export OMP_NUM_THREADS=1 PYTHONNOUSERSITE=1
export DISTDL_POOL_LIMIT=0  # tensors in memory of malloc, which the sanitizers watch

rm -rf "$build" && mkdir -p "$build"
python -m pip install -q --disable-pip-version-check --no-deps --target "$build/site" \
  --config-settings "cmake.define.DISTDL_SANITIZE=address;undefined" \
  --config-settings cmake.build-type=RelWithDebInfo .

tests=(primitives/test_{operators,start_wait,halo_exchange,staging} autograd/test_derivatives process/test_memory
  partitions/test_communicators)
tests=("${tests[@]/#/tests/python/}")
preload=
for library in libasan.so libubsan.so libstdc++.so; do preload+="$(c++ -print-file-name="$library") "; done
# What Python and torch leave behind at their end is not ours: leaks are written down without an end of the job. Stacks
# are unwound, since neither Python nor MPI keeps frame pointers.
export ASAN_OPTIONS=detect_leaks=1:fast_unwind_on_malloc=0:malloc_context_size=20:log_path=$build/report
export ASAN_OPTIONS+=:allow_user_segv_handler=0 LSAN_OPTIONS=exitcode=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc
mpiexec -n 2 env PYTHONPATH="$build/site" LD_PRELOAD="$preload" \
  python -m mpi4py -m pytest -o faulthandler_timeout=0 "${tests[@]/%/.py}"

printf '%s reports, of which these have the extension in a stack:\n' "$(find "$build" -name 'report.*' | wc -l)"
! find "$build" -name 'report.*' -exec awk -v RS= '/distdl\/_core\./ { print FILENAME ": " $0 "\n" }' {} + | grep .
echo 'None. Nothing was found.'
