# SPDX-License-Identifier: Apache-2.0
# Run by the build (cmake -P): writes OUT, a C file with one text, NAME, made of FILES one after another.
#     -DNAME= -DFILES="a;b" -DOUT=
set(bytes "")
foreach(file ${FILES})
  file(READ ${file} hex HEX)
  string(APPEND bytes "${hex}")
endforeach()
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT}.new "/* SPDX-License-Identifier: Apache-2.0 */
extern const char ${NAME}[];
const char ${NAME}[] = {
${bytes}0};
")
file(RENAME ${OUT}.new ${OUT})
