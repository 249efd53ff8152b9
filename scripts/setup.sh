#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build and the tests need and this machine lacks, and says what it does.
# Debian or a relative of it, as root or with sudo. Quick when there is nothing to do.
set -euo pipefail

# command or header that shows a package is there : package
needs=(
    "command gcc:gcc" "command clang:clang" "command cmake:cmake" "command ninja:ninja-build"
    "command pkg-config:pkg-config" "command valgrind:valgrind" "command objdump:binutils" "command python3:python3" "command git:git"
    "command gnuplot:gnuplot-nox"
    "header pthreadpool.h:libpthreadpool-dev" "header cmocka.h:libcmocka-dev" "header jansson.h:libjansson-dev"
    "header stdio.h:libc6-dev" "runtime clang:libclang-rt-dev"
    "pyheader Python.h:python3-dev" "pymodule numpy:python3-numpy" "pymodule ensurepip:python3-venv"
)

have() {
    case $1 in
        command) command -v "$2" >/dev/null ;;
        header) [ -e "/usr/include/$2" ] ;;
        pyheader) [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null)/$2" ] ;;
        pymodule) python3 -c "import $2" 2>/dev/null ;;
        # clang's sanitizer runtimes are a package of their own
        runtime) [ -n "$(find /usr/lib/llvm-*/lib/clang -name 'libclang_rt.asan*' -print -quit 2>/dev/null)" ] ;;
    esac
}

missing=()
for need in "${needs[@]}"; do
    # shellcheck disable=SC2086
    have ${need%%:*} || missing+=("${need##*:}")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "set-up: everything is there"
    exit 0
fi

sudo=
if [ "$(id -u)" -ne 0 ]; then sudo=sudo; fi
if ! command -v apt-get >/dev/null || { [ -n "$sudo" ] && ! command -v sudo >/dev/null; }; then
    echo "set-up: please install: ${missing[*]} (Debian's names), then run this again" >&2
    exit 1
fi
echo "set-up: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get -qq update
$sudo apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
echo "set-up: done"
