# SPDX-License-Identifier: Apache-2.0
# Run by the build (cmake -P): writes OUT, which says what the library was made of.
#     -DROOT= -DLIST=file with one path a line, relative to ROOT -DWITH="compiler and flags" -DOUT=
file(STRINGS ${LIST} paths)
file(READ ${WITH} with)
string(STRIP "${with}" with)
set(all "${with}\n")
foreach(path ${paths})
  file(SHA256 ${ROOT}/${path} hash)
  string(APPEND all "${path} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
string(REGEX REPLACE "([\\\"])" "\\\\\\1" quoted "${with}")
file(WRITE ${OUT}.new "/* SPDX-License-Identifier: Apache-2.0 */
#include \"tileproof.h\"

const char *tp_build_hash(void) { return \"${hash}\"; }
const char *tp_build_compiler(void) { return \"${quoted}\"; }
")
file(RENAME ${OUT}.new ${OUT})
