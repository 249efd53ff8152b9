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
sed -i "s|^prefix=.*|prefix=$work/prefix|" "$libdir/tileproof.pc"
mkdir "$work/outside" && cp "$here/outside.c" "$work/outside/" && cd "$work/outside"
export PKG_CONFIG_PATH=$libdir
# shellcheck disable=SC2046
cc outside.c -o by-pkg-config $(pkg-config --cflags --libs tileproof)
LD_LIBRARY_PATH=$(dirname "$libdir") ./by-pkg-config
# shellcheck disable=SC2046
cc outside.c -o static "$(dirname "$libdir")/libtileproof.a" $(pkg-config --cflags tileproof) \
    $(pkg-config --static --libs-only-l tileproof | sed 's/-ltileproof//')
./static
cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.20)
project(outside C)
find_package(tileproof REQUIRED)
add_executable(by-find-package outside.c)
target_link_libraries(by-find-package tileproof::tileproof)
CMAKE
cmake -S . -B build -DCMAKE_PREFIX_PATH="$work/prefix" >cmake.log 2>&1 || { cat cmake.log; exit 1; }
cmake --build build >>cmake.log 2>&1 || { cat cmake.log; exit 1; }
build/by-find-package
"$work/prefix/bin/tileproof" --version
echo "built by pkg-config, static and find_package"
