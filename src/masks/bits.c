/* SPDX-License-Identifier: Apache-2.0 */
/* bits: bit key%8 of byte key/8 of the row is set */
#include "masks/kind.h"

static const uint8_t *row_of(const tp__mask_view *view, int64_t head, int64_t row) {
    const int64_t *stride = view->tensors->bits_stride;
    return (const uint8_t *)view->tensors->bits + view->seq * stride[0] + head * stride[1] +
           row * stride[2];
}

int tp__mask_bits_allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                          int64_t key) {
    (void)node;
    return row_of(view, head, row)[key / 8] >> (key % 8) & 1;
}

int tp__mask_bits_interval(tp__mask_view *view, const tp_mask_node *node, int64_t row,
                           tp__interval *keys) {
    (void)node, (void)row;
    *keys = (tp__interval){0, view->kv_len};
    return 0;
}

/* key is a multiple of 8: blocks of keys start at multiples of 64. */
void tp__mask_bits_words(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                         int64_t key, int64_t count, uint64_t *to) {
    const uint8_t *from = row_of(view, head, row) + key / 8;
    int64_t bytes = (count + 7) / 8;
    (void)node;
    for (int64_t i = 0; i < bytes; i++) to[i / 8] |= (uint64_t)from[i] << (i % 8 * 8);
    if (count % 64 != 0) to[count / 64] &= ~(uint64_t)0 >> (64 - count % 64);
}

tp_status tp_mask_pack(int64_t rows, int64_t keys, const void *bytes, int64_t row_stride, void *bits,
                       int64_t bits_row_bytes, tp_error *error) {
    TP_REQUIRE(rows >= 0 && keys >= 0, error, TP_INVALID,
               "rows is %lld and keys %lld: they must be at least 0", (long long)rows, (long long)keys);
    TP_REQUIRE(bits_row_bytes >= keys / 8 + (keys % 8 != 0), error, TP_INVALID,
               "bits_row_bytes is %lld: it must be at least %lld for %lld keys",
               (long long)bits_row_bytes, (long long)(keys / 8 + (keys % 8 != 0)), (long long)keys);
    TP_REQUIRE(row_stride >= 0, error, TP_INVALID, "row_stride is %lld: it must be at least 0",
               (long long)row_stride);
    int64_t steps = rows > 1 && keys > 0 ? rows - 1 : 0, last;
    TP_REQUIRE(!__builtin_mul_overflow(steps, row_stride, &last) && last <= INT64_MAX - keys, error, TP_INVALID,
               "row_stride is %lld for %lld rows: the last byte must be within the address space",
               (long long)row_stride, (long long)rows);
    TP_REQUIRE(!__builtin_mul_overflow(steps, bits_row_bytes, &last) && last <= INT64_MAX - keys, error, TP_INVALID,
               "bits_row_bytes is %lld for %lld rows: the last byte must be within the address space",
               (long long)bits_row_bytes, (long long)rows);
    if (keys == 0) return TP_OK;
    TP_REQUIRE(rows == 0 || (bytes != NULL && bits != NULL), error, TP_INVALID,
               "bytes is %p and bits %p: neither may be NULL", bytes, bits);
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *from = (const uint8_t *)bytes + row * row_stride;
        uint8_t *to = (uint8_t *)bits + row * bits_row_bytes;
        for (int64_t key = 0; key < keys; key += 8) {
            unsigned packed = 0;
            for (int64_t i = 0; i < 8 && key + i < keys; i++) packed |= (from[key + i] != 0) << i;
            to[key / 8] = (uint8_t)packed;
        }
    }
    return TP_OK;
}
