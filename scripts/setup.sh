#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build and the tests need and this machine lacks, and says what it does.
#     setup.sh [tool | hosts | device | slow]     tool: only what building the tool needs; hosts: what all needs, and qemu-user;
#                                                 device: what all needs, PoCL and oclgrind; slow: all of it, abidiff and chromium
# Debian or a relative of it, as root or with sudo. Quick when there is nothing to do.
set -euo pipefail

# command or header that shows a package is there : package
needs=(
    "command gcc:gcc" "command clang:clang" "command cmake:cmake" "command ninja:ninja-build"
    "command pkg-config:pkg-config" "command valgrind:valgrind" "command objdump:binutils" "command python3:python3" "command git:git"
    "command gnuplot:gnuplot-nox"
    "header pthreadpool.h:libpthreadpool-dev" "header cmocka.h:libcmocka-dev" "header jansson.h:libjansson-dev"
    "header stdio.h:libc6-dev" "runtime clang:libclang-rt-dev" "header CL/cl.h:opencl-c-headers"
)
# A real OpenCL on the CPU, its loader, and a simulator that looks at every access.
device=("icd pocl:pocl-opencl-icd" "library libOpenCL.so.1:ocl-icd-libopencl1" "command oclgrind:oclgrind")
# Pages of `tileproof report` are looked at in a real browser.
browser=("command chromium:chromium" "command chromedriver:chromium-driver" "command pdftotext:poppler-utils")
# The Python package and its tests; NumPy comes by scripts/python_env.py. `make ... PYTHON=off` leaves all of it out.
python=${PYTHON:-python3}
if [ "$python" != off ]; then
    needs+=("pyheader Python.h:python3-dev" "pymodule ensurepip:python3-venv")
fi

case ${1:-all} in
    tool)
        needs=("command gcc:gcc" "command cmake:cmake" "command ninja:ninja-build" "header stdio.h:libc6-dev"
            "header pthreadpool.h:libpthreadpool-dev" "header jansson.h:libjansson-dev" "header CL/cl.h:opencl-c-headers")
        ;;
    hosts) needs+=("command qemu-x86_64:qemu-user") ;;
    device) needs+=("${device[@]}") ;;
    slow) needs+=("command qemu-x86_64:qemu-user" "command abidiff:abigail-tools" "${browser[@]}" "${device[@]}") ;;
    all) ;;
    *) echo "usage: setup.sh [tool | hosts | device | slow]" >&2; exit 2 ;;
esac

have() {
    case $1 in
        command) command -v "$2" >/dev/null ;;
        header) # wherever the compiler finds it
            [ -e "/usr/include/$2" ] || printf '#include <%s>\n' "$2" | ${CC:-cc} -E -x c - >/dev/null 2>&1 ;;
        icd) ls /etc/OpenCL/vendors/*"$2"* >/dev/null 2>&1 ;;
        library) ldconfig -p 2>/dev/null | grep -q "$2" || ls /usr/lib/*/"$2" >/dev/null 2>&1 ;;
        pyheader) [ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)/$2" ] ;;
        pymodule) "$python" -c "import $2" 2>/dev/null ;;
        # clang's sanitizer runtimes are a package of their own
        runtime) [ -n "$(find /usr/lib/llvm-*/lib/clang -name 'libclang_rt.asan*' -print -quit 2>/dev/null)" ] ;;
    esac
}

sudo=
if [ "$(id -u)" -ne 0 ]; then sudo=sudo; fi

# The tests of ops/ want promtool and prometheus, and say "not run here" without them. Their package would start a server, so it
# is unpacked, not installed; and asked for once.
tools=$(cd "$(dirname "$0")/.." && pwd)/build/tools
get_prometheus() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    cd "$tools" || return 1
    apt-get -qq download prometheus 2>/dev/null ||
        { $sudo apt-get -qq update && apt-get -qq download prometheus; } 2>/dev/null || return 1
    dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool ./usr/bin/prometheus
    rm -f prometheus_*.deb
}
if [ "${1:-all}" != tool ] && ! command -v prometheus >/dev/null && [ ! -e "$tools/asked-for-prometheus" ]; then
    mkdir -p "$tools"
    : >"$tools/asked-for-prometheus"
    echo "set-up: getting promtool and prometheus from Debian's package prometheus into build/tools"
    (get_prometheus) || echo "set-up: without promtool and prometheus the tests of ops/ are not run here"
fi

missing=()
for need in "${needs[@]}"; do
    # shellcheck disable=SC2086
    have ${need%%:*} || missing+=("${need##*:}")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "set-up: everything is there"
    exit 0
fi

ask() { # WHY
    echo "set-up: $1. These packages are missing (Debian's names): ${missing[*]}" >&2
    echo "set-up: as root: apt-get install --no-install-recommends ${missing[*]}; then run this again" >&2
    exit 1
}
command -v apt-get >/dev/null || ask "there is no apt-get here"
if [ -n "$sudo" ]; then
    command -v sudo >/dev/null || ask "$(id -un) is not root and there is no sudo"
    # with a terminal sudo may ask for a password; without one it would only fail
    [ -t 0 ] || sudo -n true 2>/dev/null || ask "$(id -un) may not use sudo without a password"
fi
echo "set-up: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get -qq update || ask "apt-get update failed"
$sudo apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null || ask "apt-get install failed"
echo "set-up: done"
