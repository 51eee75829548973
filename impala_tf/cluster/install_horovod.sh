#!/bin/sh
# Compiles Horovod and installs it:  impala_tf/cluster/install_horovod.sh PYTHON [PIP_OPTION...]
#
# PYTHON is an interpreter that already has TensorFlow. Also needed: cmake, make, g++ and Python's
# headers. All versions come from constraints.txt, the only place that pins them. Does nothing if
# this script has already installed Horovod for this TensorFlow. What it compiled before for such a
# Python and TensorFlow is a wheel in the user's cache; it is taken if it can be imported.
set -eu
python=${1:?usage: impala_tf/cluster/install_horovod.sh PYTHON [PIP_OPTION...]}
shift

pip() {
    command=$1
    shift
    "$python" -m pip "$command" --disable-pip-version-check \
        -c "$(dirname "$0")/../constraints.txt" "$@"
}

# edit FILE SED_COMMAND: changes a file of Horovod's source, or fails.
edit() {
    sed "$2" "$source/$1" >"$source/edited"
    if cmp -s "$source/edited" "$source/$1"; then
        echo "install_horovod.sh: $1 of this Horovod has nothing to change with: sed '$2'" >&2
        exit 1
    fi
    mv "$source/edited" "$source/$1"
}

# Only what impala_tf uses: TensorFlow over Gloo, and over MPI (for mpirun) if mpicxx is there.
# HOROVOD_WITHOUT_... keeps the build from looking for anything else.
export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_WITH_GLOO=1
if command -v mpicxx >/dev/null; then
    mpi=WITH
else
    mpi=WITHOUT
fi
export "HOROVOD_${mpi}_MPI=1"

sdist_sha256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0  # of horovod 0.28.1

# Horovod works only with the TensorFlow that it was compiled against.
tensorflow=$("$python" -c 'from importlib.metadata import packages_distributions, version
print(version(packages_distributions()["tensorflow"][0]))')
built_for="TensorFlow $tensorflow, $mpi MPI, install_horovod.sh $(cksum <"$0" | cut -d " " -f 1)"
if "$python" -c 'import sys, horovod
sys.exit(horovod.built_for != sys.argv[1])' "$built_for" 2>/dev/null; then
    exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compiled=$("$python" -c 'import platform, sys, zlib
key = f"{sys.argv[1]}, {sys.implementation.cache_tag}, {platform.machine()}"
print(f"horovod-{zlib.crc32(key.encode()):08x}")' "$built_for")
compiled=${XDG_CACHE_HOME:-${HOME:-$folder}/.cache}/impala_tf/$compiled
install_wheel() {
    pip install "$@" --no-deps --force-reinstall "$compiled"/*.whl
}

# The build runs without isolation (see below), so its tools have to be installed first.
pip install "$@" setuptools wheel packaging pyyaml psutil cloudpickle

if [ -d "$compiled" ]; then
    install_wheel "$@"
    "$python" -c 'import horovod.tensorflow' 2>/dev/null && exit 0  # else compiled for another libc
    rm -r "$compiled"
fi

pip download "$@" --no-deps --no-binary=horovod --no-build-isolation -d "$folder" horovod
echo "$sdist_sha256  $(echo "$folder"/horovod-*.tar.gz)" | sha256sum --check --quiet
tar -xzf "$folder"/horovod-*.tar.gz -C "$folder"
source=$(echo "$folder"/horovod-*/)

# xla_mpi_ops.cc is empty without GPUs, but it includes a header of TensorFlow 2.21 which needs
# highwayhash/arch_specific.h, and TensorFlow's wheel lacks that file.
edit horovod/tensorflow/CMakeLists.txt '/xla_mpi_ops\.cc/d'
# Symbols for a debugger make the build longer, and the result 15 times as large.
edit CMakeLists.txt \
    's/^# RelWithDebInfo uses.*/string(REPLACE "-g" "" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")/'
# The Gloo context of a process set reads its own gloo_iface_, which is empty, in place of
# HOROVOD_GLOO_IFACE. It then listens on the address of the machine's host name. That is often
# loopback (Debian puts 127.0.1.1 into /etc/hosts), where learners on other machines cannot connect.
edit horovod/common/gloo/gloo_context.cc \
    '/::InitializeForProcessSet(/,/CreateDevice/s/iface = gloo_iface_;/iface = global_context.gloo_iface_;/'
edit horovod/__init__.py "\$a built_for = '$built_for'"

# In a recipe of make, MAKEFLAGS may be set, and Horovod would then be compiled on one core.
MAKEFLAGS=-j$(nproc)
export MAKEFLAGS
# Horovod is compiled against the installed TensorFlow, which an isolated build would not see. pip
# itself would keep the wheel under the name of a folder that never comes again.
pip wheel "$@" --no-cache-dir --no-deps --no-build-isolation -w "$folder/wheel" "$source"
mkdir -p "$(dirname "$compiled")"
[ -d "$compiled" ] || mv "$folder/wheel" "$compiled"
install_wheel "$@"
