# SPDX-License-Identifier: Apache-2.0
# Run by the build (cmake -P): writes OUT, a C file with one text, NAME, made of FILES one after another.
#     -DNAME= -DFILES="a;b" -DOUT= [-DHASH=ON]     HASH: a second text, NAME_hash, is their SHA-256 as a page's policy names a script
set(bytes "")
foreach(file ${FILES})
  file(READ ${file} hex HEX)
  string(APPEND bytes "${hex}")
endforeach()
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
if(HASH)
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  set(base64 "")
  file(SHA256 ${FILES} sha) # of one file; 64 digits: 21 times three, and one
  foreach(at RANGE 0 63 3)
    string(SUBSTRING "${sha}00" ${at} 3 three)
    math(EXPR first "0x${three} >> 6")
    math(EXPR second "0x${three} & 63")
    string(SUBSTRING ${digits} ${first} 1 first)
    string(SUBSTRING ${digits} ${second} 1 second)
    string(APPEND base64 ${first}${second})
  endforeach()
  string(SUBSTRING ${base64} 0 43 base64)
  set(hash "extern const char ${NAME}_hash[];\nconst char ${NAME}_hash[] = \"sha256-${base64}=\";\n")
endif()
file(WRITE ${OUT}.new "/* SPDX-License-Identifier: Apache-2.0 */
extern const char ${NAME}[];
const char ${NAME}[] = {
${bytes}0};
${hash}")
file(RENAME ${OUT}.new ${OUT})
