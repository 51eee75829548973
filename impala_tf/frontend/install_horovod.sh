#!/bin/sh
# Compiles Horovod and installs it:  impala_tf/frontend/install_horovod.sh PYTHON [PIP_OPTION...]
#
# PYTHON is an interpreter that already has TensorFlow. Also needed: cmake, g++ and Python's headers.
# All versions come from constraints.txt, the only place that pins them.
set -eu
python=${1:?usage: impala_tf/frontend/install_horovod.sh PYTHON [PIP_OPTION...]}
shift

pip_install() {
    "$python" -m pip install --disable-pip-version-check \
        -c "$(dirname "$0")/../constraints.txt" "$@"
}

# The build runs without isolation (see below), so its tools have to be installed first. Horovod
# needs setuptools below 70.
pip_install "$@" setuptools wheel packaging pyyaml psutil cloudpickle

# Only what impala_tf uses: TensorFlow over Gloo, and over MPI (for mpirun) if mpicxx is there.
# HOROVOD_WITHOUT_... keeps the build from looking for anything else.
export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_WITH_GLOO=1
if command -v mpicxx >/dev/null; then
    export HOROVOD_WITH_MPI=1
    # pip caches what it builds, but does not know whether that was with MPI or without.
    set -- --no-cache-dir "$@"
else
    export HOROVOD_WITHOUT_MPI=1
fi
# There is no wheel: Horovod is compiled against the installed TensorFlow, which an isolated build
# would not see.
pip_install "$@" --no-build-isolation horovod
