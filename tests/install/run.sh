#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs into an empty home, with an empty environment, by the README's own lines, moves what was installed, and builds
# programs outside the tree against it: by pkg-config, statically, and by find_package, shared and static.
#     run.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source_dir=$(cd "$1" && pwd) build=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/home" "$work/outside" && cp "$here"/outside*.c "$work/outside/" && cd "$work/outside"
clean() { env -i HOME="$work/home" PATH="$PATH" "$@"; }

# The first block of a language after a heading of the README.
block() { # LANGUAGE HEADING
    awk -v fence="^\`\`\`$1\$" -v heading="$2" 'index($0, heading) == 1 {on = 1} on && $0 ~ fence {copy = 1; next}
        copy && /^```$/ {exit} copy' "$source_dir/README.md"
}
block c '# tileproof' >twelve.c
block sh '## Build, test, install' >paste.sh
block cmake '## Build, test, install' >paste.cmake
grep -q 'tp_attention' twelve.c && grep -q 'target_link_libraries(twelve tileproof::tileproof)' paste.cmake
# The tree is built already, by the test run; everything else is pasted as it stands.
[ "$(head -1 paste.sh)" = 'cmake -S . -B build/mine -G Ninja -DTILEPROOF_TESTS=OFF && cmake --build build/mine' ] ||
    { echo "the README's first line builds in another way:"; head -1 paste.sh; exit 1; }
sed -i "1d; s|build/mine|'$build'|" paste.sh
libdir=$(sed -n 's/^CMAKE_INSTALL_LIBDIR:[A-Z]*=//p' "$build/CMakeCache.txt")
case $libdir in lib) ;; *) sed -i "s|/lib/pkgconfig|/$libdir/pkgconfig|" paste.sh ;; esac
clean sh -e paste.sh >paste.log 2>&1 || { echo "pasted from the README:"; cat paste.sh paste.log; exit 1; }
grep -q '0 scores written' paste.log || { cat paste.log; exit 1; }

# Moved, it still finds itself; and no file of it knows where it was built or installed.
mv "$work/home/.local" "$work/moved"
libdir=$(dirname "$(dirname "$(find "$work/moved" -name tileproof.pc)")")
if grep -rlE "$work/home|$build|/usr/local|/usr/lib" "$libdir/pkgconfig" "$libdir/cmake"; then
    echo "these files name a folder of this machine"
    exit 1
fi
# Man pages and completions, where there are any.
if [ -d "$build/manual" ]; then
    share=$work/moved/share
    for file in man/man1/tileproof.1 man/man1/tileproof-bench.1 bash-completion/completions/tileproof \
        zsh/site-functions/_tileproof fish/vendor_completions.d/tileproof.fish; do
        [ -s "$share/$file" ] || { echo "not installed: share/$file"; exit 1; }
    done
    clean bash -n "$share/bash-completion/completions/tileproof"
fi
pc() { clean PKG_CONFIG_PATH="$libdir/pkgconfig" pkg-config "$@"; }
# shellcheck disable=SC2046
clean cc outside.c -o by-pkg-config $(pc --cflags --libs tileproof)
clean LD_LIBRARY_PATH="$libdir" ./by-pkg-config
# shellcheck disable=SC2046
clean cc outside.c -o static "$libdir/libtileproof.a" $(pc --cflags tileproof) \
    $(pc --static --libs-only-l tileproof | sed 's/-ltileproof//')
clean ./static
proof=
if [ -e "$libdir/pkgconfig/tileproof_proof.pc" ]; then
    # shellcheck disable=SC2046
    clean cc outside_proof.c -o proof-by-pkg-config $(pc --cflags --libs tileproof_proof)
    clean LD_LIBRARY_PATH="$libdir" ./proof-by-pkg-config
    # shellcheck disable=SC2046
    clean cc outside_proof.c -o proof-static "$libdir/libtileproof_proof.a" "$libdir/libtileproof.a" \
        $(pc --static --cflags tileproof_proof) $(pc --static --libs-only-l tileproof_proof | sed 's/-ltileproof[a-z_]*//g')
    clean ./proof-static
    clean "$work/moved/bin/tileproof" model "$work/moved/share/tileproof/models/gpt2.json" >/dev/null
    proof='foreach(kind proof proof_static)
  add_executable(by-find-package-${kind} outside_proof.c)
  target_link_libraries(by-find-package-${kind} tileproof::${kind})
endforeach()'
fi
{
    printf 'cmake_minimum_required(VERSION 3.20)\nproject(outside C)\nadd_executable(twelve twelve.c)\n'
    cat paste.cmake
    printf 'add_executable(static outside.c)\ntarget_link_libraries(static tileproof::tileproof_static)\n%s\n' "$proof"
} >CMakeLists.txt
clean cmake -S . -B "$work/a build" -DCMAKE_PREFIX_PATH="$work/moved" >cmake.log 2>&1 || { cat cmake.log; exit 1; }
clean cmake --build "$work/a build" >>cmake.log 2>&1 || { cat cmake.log; exit 1; }
for program in twelve static ${proof:+by-find-package-proof by-find-package-proof_static}; do clean "$work/a build/$program"; done
if ldd "$work/a build/static" | grep libtileproof; then echo "static is not static"; exit 1; fi
clean "$work/moved/bin/tileproof" --version
echo "built by the README's lines, pkg-config, static and find_package"
