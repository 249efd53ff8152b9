/* SPDX-License-Identifier: Apache-2.0 */
/* Dtypes under the three names by which they come in. */
#include "core.h"

#include <string.h>

static const dtype_row rows[] = {
    {TP_F32, 4, "float32", DL_FLOAT, 32, "f"},
    {TP_F16, 2, "float16", DL_FLOAT, 16, "e"},
    {TP_BF16, 2, "bfloat16", DL_BFLOAT, 16, ""},
    {DTYPE_BOOL, 1, "bool", DL_BOOL, 8, "?"},
    {DTYPE_I32, 4, "int32", DL_INT, 32, "il"},
    {DTYPE_I64, 8, "int64", DL_INT, 64, "lq"},
    {DTYPE_I8, 1, "int8", DL_INT, 8, "b"},
    {DTYPE_U8, 1, "uint8", DL_UINT, 8, "Bc"},
    {DTYPE_E4M3, 1, "float8_e4m3fn", DL_E4M3, 8, ""},
    /* known by name only, for errors */
    {DTYPE_OTHER, 8, "float64", DL_FLOAT, 64, "d"},
    {DTYPE_OTHER, 2, "int16", DL_INT, 16, "h"},
    {DTYPE_OTHER, 2, "uint16", DL_UINT, 16, "H"},
    {DTYPE_OTHER, 4, "uint32", DL_UINT, 32, "IL"},
    {DTYPE_OTHER, 8, "uint64", DL_UINT, 64, "LQ"},
    {DTYPE_OTHER, 8, "complex64", DL_COMPLEX, 64, ""},
    {DTYPE_OTHER, 16, "complex128", DL_COMPLEX, 128, ""},
};
static const dtype_row unknown = {DTYPE_OTHER, 1, "of an unknown dtype", 255, 0, ""};
#define EACH(row)                                                                                  \
    for (const dtype_row *row = rows; row < rows + sizeof rows / sizeof rows[0]; row++)

const dtype_row *dtype_of_code(int code) {
    EACH(row) if (row->code == code) return row;
    return &unknown;
}

const dtype_row *dtype_of_name(const char *name) {
    EACH(row)
    if (strcmp(row->name, name) == 0 ||
        strcmp(tp_dtype_name((tp_dtype)row->code), name) == 0) return row;
    return &unknown;
}

const dtype_row *dtype_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes) {
    EACH(row) if (lanes == 1 && row->dl_code == code && row->dl_bits == bits) return row;
    return &unknown;
}

/* One letter, with or without a mark for this host's byte order. */
const dtype_row *dtype_of_format(const char *format, Py_ssize_t size) {
    if (format == NULL) format = "B";
    const char *native = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "@=<" : "@=>!";
    if (*format != '\0' && strchr(native, *format) != NULL) format++;
    if (strlen(format) != 1) return &unknown;
    EACH(row) if (row->size == size && strchr(row->formats, *format) != NULL) return row;
    return &unknown;
}
