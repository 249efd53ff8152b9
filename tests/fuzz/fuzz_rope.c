/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: any bytes as tp_rope_options, tp_rope_rows and positions. Lists, tables and rows are memory of this program,
 * as long as the counts say and no longer, so that a sanitizer sees a step beyond. Either something is refused with a reason, and
 * no row is written, or every row is turned: its length stays, but for the attention factor.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tileproof_rope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
    if (!condition) abort();
}

typedef struct input {
    tp_rope_options options;
    tp_rope_rows rows;
    int64_t positions[3 * 4];
    uint8_t lists; /* bits: short, long, cosines, sines, positions, in place, norm */
} input;

static float *ones(int64_t count) {
    float *list = malloc((size_t)count * sizeof *list + 1);
    for (int64_t i = 0; i < count; i++) list[i] = 1;
    return list;
}

static int64_t within(int64_t x, int64_t max) {
    return x < 0 || x > max ? max : x;
}

static double norm_of(const float *row, int64_t count) {
    double sum = 0;
    for (int64_t x = 0; x < count; x++) sum += (double)row[x] * row[x];
    return sqrt(sum);
}

/* Rows of one head, each apart from the next; refused or turned. */
static void turn(const input *in, const tp_rotary *rotary, int64_t dim) {
    tp_rope_rows rows = in->rows;
    tp_error error = TP_ERROR_INIT;
    int64_t tokens = within(rows.tokens, 4), batch = tokens == 1 ? within(rows.batch, 4) : 1, count = 4 * dim;
    float *from = ones(count), *to = ones(count), *weight = ones(dim);
    int64_t *positions = malloc(sizeof in->positions);
    memcpy(positions, in->positions, sizeof in->positions);
    rows.struct_size = sizeof rows, rows.dtype = rows.dtype ? TP_F32 : 0, rows.batch = batch, rows.tokens = tokens;
    rows.heads = within(rows.heads, 1), rows.cosines = rows.sines = NULL;
    rows.in.data = from, rows.out.data = in->lists & 32 ? from : to;
    for (int i = 0; i < 3; i++) rows.in.stride[i] = rows.out.stride[i] = dim;
    rows.positions = in->lists & 16 ? NULL : positions;
    rows.norm_weight = in->lists & 64 ? weight : NULL;
    float *out = rows.out.data;
    double before = norm_of(from, dim);
    tp_status status = tp_rope_apply(rotary, &rows, &error);
    for (int64_t i = 0; i < count && status != TP_OK; i++) require(out[i] == 1);
    if (status != TP_OK) require(strlen(error.text) > 0);
    if (status == TP_OK && !rows.norm_weight && in->options.cos_table == NULL && 2 * tp_rope_pairs(rotary) == dim) {
        double factor = norm_of(out, dim) / before; /* the same for every token */
        for (int64_t t = 1; t < batch * tokens; t++)
            require(fabs(norm_of(out + t * dim, dim) - factor * before) <= 1e-5 * factor * before);
    }
    free(from), free(to), free(weight), free(positions);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in;
    memset(&in, 0, sizeof in);
    memcpy(&in, data, size < sizeof in ? size : sizeof in);
    tp_rope_options *o = &in.options;
    tp_error error = TP_ERROR_INIT;
    tp_rotary *rotary = NULL;
    o->struct_size = sizeof *o;
    o->factor_count = within(o->factor_count, 2048);
    o->table_width = within(o->table_width, 64);
    o->table_positions = within(o->table_positions, 64);
    float *lists[4] = {ones(o->factor_count), ones(o->factor_count), ones(o->table_width * o->table_positions),
                       ones(o->table_width * o->table_positions)};
    o->short_factors = in.lists & 1 ? lists[0] : NULL;
    o->long_factors = in.lists & 2 ? lists[1] : NULL;
    o->cos_table = in.lists & 4 ? lists[2] : NULL;
    o->sin_table = in.lists & 8 ? lists[3] : NULL;
    tp_status status = tp_rope_create(o, &rotary, &error);
    require((status == TP_OK) == (rotary != NULL) && (status == TP_OK || strlen(error.text) > 0));
    if (rotary != NULL) turn(&in, rotary, o->head_dim);
    tp_rope_destroy(rotary);
    for (int i = 0; i < 4; i++) free(lists[i]);
    return 0;
}
