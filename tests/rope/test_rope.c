/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotation against its definition, which is written apart (definition.h), on options, rows and positions drawn at random
 * (draw.h). What is rotated must be right to the rounding of its dtype, what is not rotated stays bit for bit, and what is no
 * row of out is not touched. A failure says the seed of its trial.
 */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "rope/definition.h"
#include "rope/draw.h"
#include "rope/rope.h"

enum { TRIALS = 3000 };

/* By how much of itself an angle may be off. tp_rope_angle has the figure for double; for float32 what the draws can reach. */
static long double angle_slack(const drawn *d) {
    const tp_rope_options *o = &d->options;
    if (o->cos_table != NULL) return 0;
    if (o->angle == TP_ROPE_DOUBLE) return 0x1p-47L;
    long double steps = 32;
    if (o->kind == TP_ROPE_LLAMA3)
        steps += 16 * fmaxl(o->factor, 1 / o->factor) * o->high_freq_factor / (o->high_freq_factor - o->low_freq_factor);
    if (o->kind == TP_ROPE_DYNAMIC) steps += 16 * fmaxl(o->factor, 1);
    return steps * 0x1p-24L;
}

static int64_t offset(const tp_tensor *t, int64_t b, int64_t token, int64_t h) {
    return b * t->stride[0] + token * t->stride[1] + h * t->stride[2];
}

static void token_position(const drawn *d, int64_t token, int64_t position[3]) {
    for (int i = 0; i < 3; i++) position[i] = d->positions[(d->axes == 3 ? i * d->rows.batch * d->rows.tokens : 0) + token];
}

typedef struct wanted {
    long double value[4096], slack[4096]; /* what it must be; how far off it may be before it is rounded to its dtype */
} wanted;

/* The row before the rotation, normed where that is asked. */
static void start_of(const drawn *d, const void *in, int64_t at, wanted *row) {
    const tp_rope_rows *r = &d->rows;
    int64_t dim = d->options.head_dim;
    long double mean = 0;
    for (int64_t x = 0; x < dim; x++) {
        row->value[x] = tp__load((tp_dtype)r->dtype, in, at + x);
        row->slack[x] = 0;
        mean += row->value[x] * row->value[x] / (long double)dim;
    }
    if (r->norm_weight == NULL) return;
    for (int64_t x = 0; x < dim; x++) {
        row->value[x] *= (r->norm_one_plus ? 1 + (long double)r->norm_weight[x] : r->norm_weight[x]) / sqrtl(mean + r->norm_eps);
        row->slack[x] = 3.01L * 0x1p-24L * fabsl(row->value[x]) + FLT_MIN * 0x1p-20L;
    }
}

static void expect(const drawn *d, const void *in, int64_t token, int64_t at, wanted *row) {
    const tp_rope_options *o = &d->options;
    int64_t position[3];
    token_position(d, token, position);
    start_of(d, in, at, row);
    for (int64_t i = 0; i < d->pairs; i++) {
        int64_t first = o->first + (o->style == TP_ROPE_INTERLEAVED ? 2 * i : i);
        int64_t second = o->style == TP_ROPE_INTERLEAVED ? first + 1 : first + d->pairs;
        long double turn[2], a = row->value[first], b = row->value[second];
        turn_of(o, i, position, d->current, turn);
        long double angle =
            (long double)position[axis_of_pair(o, i)] * (o->cos_table != NULL ? 0 : frequency_of(o, i, d->current));
        long double off = angle_slack(d) * angle + 4.01L * 0x1p-24L, size = (fabsl(a) + fabsl(b)) * attention_of(o);
        if (o->cos_table != NULL) off *= fmaxl(1, fabsl(turn[0]) + fabsl(turn[1]));
        long double slack = off * size + (row->slack[first] + row->slack[second]) * attention_of(o) * 1.01L + FLT_MIN * 0x1p-20L;
        row->value[first] = a * turn[0] - b * turn[1];
        row->value[second] = b * turn[0] + a * turn[1];
        row->slack[first] = row->slack[second] = slack;
    }
}

/* With the last rounding, to the dtype. */
static long double rounding(int32_t dtype, long double value) {
    static const struct {
        long double share, min;
    } of[] = {[TP_F32] = {0, 0}, [TP_F16] = {0x1p-11L, 0x1p-25L}, [TP_BF16] = {0x1p-8L, 0}};
    return fmaxl(of[dtype].share * fabsl(value), of[dtype].min);
}

static void check_rows(const drawn *d, const void *before, const unsigned char *old_out, uint64_t seed) {
    const tp_rope_rows *r = &d->rows;
    const tp_rope_options *o = &d->options;
    int64_t size = (int64_t)tp_dtype_bytes((tp_dtype)r->dtype);
    unsigned char *is_row = calloc(1, (size_t)d->bytes);
    wanted *row = malloc(sizeof *row);
    for (int64_t b = 0; b < r->batch; b++)
        for (int64_t t = 0; t < r->tokens; t++)
            for (int64_t h = 0; h < r->heads; h++) {
                int64_t from = offset(&r->in, b, t, h), to = offset(&r->out, b, t, h);
                expect(d, before, b * r->tokens + t, from, row);
                memset(is_row + to * size, 1, (size_t)(o->head_dim * size));
                for (int64_t x = 0; x < o->head_dim; x++) {
                    long double got = tp__load((tp_dtype)r->dtype, r->out.data, to + x), want = row->value[x];
                    if (row->slack[x] == 0
                            ? memcmp((char *)r->out.data + (to + x) * size, (const char *)before + (from + x) * size,
                                     (size_t)size) != 0
                            : !(fabsl(got - want) <= row->slack[x] + rounding(r->dtype, fabsl(want) + row->slack[x])))
                        fail_msg("seed %llu: kind %d style %d angle %d dtype %d dim %lld of %lld (rotated %lld from %lld): %.9Lg "
                                 "instead of %.9Lg, off by %Lg of %Lg",
                                 (unsigned long long)seed, o->kind, o->style, o->angle, r->dtype, (long long)x,
                                 (long long)o->head_dim, (long long)o->dims, (long long)o->first, got, want, fabsl(got - want),
                                 row->slack[x]);
                }
            }
    for (int64_t i = 0; i < d->bytes; i++)
        if (!is_row[i] && ((unsigned char *)r->out.data)[i] != old_out[i])
            fail_msg("seed %llu: byte %lld is no row", (unsigned long long)seed, (long long)i);
    free(row);
    free(is_row);
}

static void fill(drawn *d, void *data) {
    int64_t size = (int64_t)tp_dtype_bytes((tp_dtype)d->rows.dtype);
    for (int64_t i = 0; i < d->bytes / size; i++) {
        float x = (float)(draw_real(d, -1, 1) * draw_log(d, 1e-3, 1e3));
        uint16_t half = d->rows.dtype == TP_F16 ? tp__to_f16(x) : tp__to_bf16(x);
        memcpy((char *)data + i * size, size == 4 ? (void *)&x : (void *)&half, (size_t)size);
    }
}

static void *copy(const void *data, int64_t bytes) {
    return memcpy(malloc((size_t)bytes), data, (size_t)bytes);
}

static void made(drawn *d, tp_rotary **rotary, uint64_t seed) {
    tp_error error = TP_ERROR_INIT;
    if (tp_rope_create(&d->options, rotary, &error) != TP_OK) fail_msg("seed %llu: %s", (unsigned long long)seed, error.text);
    assert_int_equal(tp_rope_pairs(*rotary), d->pairs);
}

static void rotated(const tp_rotary *rotary, const tp_rope_rows *rows, uint64_t seed) {
    tp_error error = TP_ERROR_INIT;
    if (tp_rope_apply(rotary, rows, &error) != TP_OK) fail_msg("seed %llu: %s", (unsigned long long)seed, error.text);
}

static void every_draw_is_its_definition(void **state) {
    (void)state;
    int kinds[9] = {0};
    for (uint64_t seed = 1; seed <= TRIALS; seed++) {
        drawn *d = draw_new(seed);
        tp_rotary *rotary = NULL;
        if (d->options.kind != TP_ROPE_YARN && draw(d, 4) == 0) d->options.angle = TP_ROPE_FLOAT32;
        fill(d, d->in);
        if (d->out != d->in) fill(d, d->out);
        void *before = copy(d->in, d->bytes), *old_out = copy(d->out, d->bytes);
        made(d, &rotary, seed);
        /* longrope's factors are the rotary's own by now; the definition reads them still */
        rotated(rotary, &d->rows, seed);
        check_rows(d, before, old_out, seed);
        if (d->out != d->in) assert_memory_equal(d->in, before, (size_t)d->bytes);
        kinds[d->options.kind]++;
        tp_rope_destroy(rotary);
        draw_free(d);
        free(before);
        free(old_out);
    }
    for (int kind = 0; kind < 9; kind++) assert_true(kind == TP_ROPE_2D || kinds[kind] > TRIALS / 30);
}

/* Angles that were computed before, and the library's own seam, give the same bits. */
static void ready_angles_and_the_seam_are_the_same(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= TRIALS / 10; seed++) {
        drawn *d = draw_new(seed);
        tp_rope_rows *r = &d->rows, ready = *r;
        tp_rotary *rotary = NULL;
        tp_error error = TP_ERROR_INIT;
        int64_t all = r->batch * r->tokens, dim = d->options.head_dim, heads = r->heads;
        fill(d, d->in);
        void *other = copy(d->in, d->bytes);
        float *token = malloc((size_t)(heads * dim) * sizeof *token);
        made(d, &rotary, seed);
        for (int i = 0; i < 2; i++) d->angles[i] = malloc((size_t)(all * d->pairs) * sizeof(float) + 1);
        assert_int_equal(tp_rope_angles(rotary, r->batch, r->tokens, r->positions, r->length, d->angles[0], d->angles[1], &error),
                         TP_OK);
        for (int64_t h = 0; h < heads; h++)
            for (int64_t x = 0; x < dim; x++)
                token[h * dim + x] = tp__load((tp_dtype)r->dtype, d->in, offset(&r->in, 0, 0, h) + x);
        ready.in.data = other, ready.out = ready.in, ready.positions = NULL, ready.length = 0;
        ready.cosines = d->angles[0], ready.sines = d->angles[1];
        r->out = r->in, r->out.data = r->in.data;
        rotated(rotary, r, seed);
        rotated(rotary, &ready, seed);
        assert_memory_equal(d->in, other, (size_t)d->bytes);
        int64_t position[3];
        token_position(d, 0, position);
        assert_int_equal(tp__rope_check_position(rotary, position, &error), TP_OK);
        tp__rope_token(rotary, r->norm_weight, r->norm_eps, r->norm_one_plus, d->current, position, heads, token);
        for (int64_t i = 0; i < heads * dim && r->dtype == TP_F32; i++)
            assert_memory_equal(&token[i], (float *)d->in + offset(&r->in, 0, 0, i / dim) + i % dim, sizeof(float));
        tp_rope_destroy(rotary);
        draw_free(d);
        free(token);
        free(other);
    }
}

/* Half a million radians on, double is right to 2^-24 and float32 is not. */
static void angles_at_a_million(void **state) {
    (void)state;
    tp_rope_options o = TP_ROPE_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    int64_t position = 1000003;
    double worst[2] = {0, 0};
    o.head_dim = 128, o.theta = 5e5;
    for (int32_t angle = 0; angle < 2; angle++) {
        tp_rotary *rotary = NULL;
        float cosines[64], sines[64];
        o.angle = angle;
        assert_int_equal(tp_rope_create(&o, &rotary, &error), TP_OK);
        assert_int_equal(tp_rope_angles(rotary, 1, 1, &position, 0, cosines, sines, &error), TP_OK);
        for (int64_t i = 0; i < 64; i++) {
            long double turn[2];
            turn_of(&o, i, (int64_t[3]){position, position, position}, position + 1, turn);
            worst[angle] = fmax(worst[angle], (double)fmaxl(fabsl(cosines[i] - turn[0]), fabsl(sines[i] - turn[1])));
        }
        tp_rope_destroy(rotary);
    }
    print_message("cosines and sines at position %lld are off by %.2g in double, by %.2g in float32\n", (long long)position,
                  worst[0], worst[1]);
    assert_true(worst[0] < 0x1p-24);
    assert_true(worst[1] > 1e-3 && worst[1] < 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_draw_is_its_definition),
                                       cmocka_unit_test(ready_angles_and_the_seam_are_the_same),
                                       cmocka_unit_test(angles_at_a_million)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
