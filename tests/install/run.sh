#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs into an empty prefix and builds a program outside the tree by pkg-config and by find_package.
#     run.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$2" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
libdir=$(dirname "$(find "$work/prefix" -name tileproof.pc)")
# the .pc file names the configured prefix; a package manager rewrites it the same way
sed -i "s|^prefix=.*|prefix=$work/prefix|" "$libdir"/tileproof*.pc
mkdir "$work/outside" && cp "$here"/outside*.c "$work/outside/" && cd "$work/outside"
export PKG_CONFIG_PATH=$libdir
# shellcheck disable=SC2046
cc outside.c -o by-pkg-config $(pkg-config --cflags --libs tileproof)
LD_LIBRARY_PATH=$(dirname "$libdir") ./by-pkg-config
# shellcheck disable=SC2046
cc outside.c -o static "$(dirname "$libdir")/libtileproof.a" $(pkg-config --cflags tileproof) \
    $(pkg-config --static --libs-only-l tileproof | sed 's/-ltileproof//')
./static
proof=
if [ -e "$libdir/tileproof_proof.pc" ]; then
    # shellcheck disable=SC2046
    cc outside_proof.c -o proof-by-pkg-config $(pkg-config --cflags --libs tileproof_proof)
    LD_LIBRARY_PATH=$(dirname "$libdir") ./proof-by-pkg-config
    # shellcheck disable=SC2046
    cc outside_proof.c -o proof-static "$(dirname "$libdir")"/libtileproof_proof.a "$(dirname "$libdir")/libtileproof.a" \
        $(pkg-config --static --cflags tileproof_proof) $(pkg-config --static --libs-only-l tileproof_proof | sed 's/-ltileproof[a-z_]*//g')
    ./proof-static
    "$work/prefix/bin/tileproof" model "$work/prefix/share/tileproof/models/gpt2.json" >/dev/null
    proof='add_executable(proof-by-find-package outside_proof.c)
target_link_libraries(proof-by-find-package tileproof::proof)'
fi
cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.20)
project(outside C)
find_package(tileproof REQUIRED)
add_executable(by-find-package outside.c)
target_link_libraries(by-find-package tileproof::tileproof)
CMAKE
echo "$proof" >>CMakeLists.txt
cmake -S . -B build -DCMAKE_PREFIX_PATH="$work/prefix" >cmake.log 2>&1 || { cat cmake.log; exit 1; }
cmake --build build >>cmake.log 2>&1 || { cat cmake.log; exit 1; }
build/by-find-package
[ -z "$proof" ] || build/proof-by-find-package
"$work/prefix/bin/tileproof" --version
echo "built by pkg-config, static and find_package"
