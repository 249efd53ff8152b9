/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instructions on pairs of bf16 and on tiles of them against their emulations, bit by bit, on hosts that have them; and the
 * emulations against their definitions by fmaf where nothing is small, on every host. Elements are hostile: every class of
 * number against every other, products that cancel, ties, sums at the edge of what is normal.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dots/dots.h"
#include "tileproof.h"

enum { LANES = 16, VECTORS = 256, COUNT = LANES * VECTORS, TRIALS = 2000 };

static uint64_t state = 1;

static uint64_t roll(void) {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float from_bf16(uint32_t x) {
    return from_bits(x << 16);
}

/* Zeros, the ends of what is subnormal and normal, VEC_SMALL and its neighbour, one, infinities, NaN of both kinds. */
static const uint16_t corners[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x8080, 0x0081, 0x1f80, 0x2000, 0x257f,
                                   0x2580, 0x3f80, 0xbf80, 0x3f81, 0x5f80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81};

/* An element: any, near one, such that products are near 2^-126, a corner. */
static uint32_t element(int kind) {
    uint64_t r = roll();
    uint32_t any = (uint32_t)r & 0xffff;
    switch (kind) {
    case 0: return any;
    case 1: return (any & 0x807f) | (uint32_t)(0x78 + (r >> 32) % 16) << 7;
    case 2: return (any & 0x807f) | (uint32_t)(60 + (r >> 32) % 10) << 7;
    default: return corners[(r >> 32) % (sizeof corners / sizeof *corners)];
    }
}

static float sum(int kind, uint32_t a, uint32_t b) {
    uint64_t r = roll();
    uint32_t any = (uint32_t)r;
    if ((r >> 60) == 0) return -from_bf16(a >> 16) * from_bf16(b >> 16);                 /* cancels the first product */
    if ((r >> 60) == 1) return from_bits((any & 0x80000000u) | ((any >> 8) & 0x7fffff)); /* subnormal */
    switch (kind) {
    case 0: return from_bits(any);
    case 1: return from_bits((any & 0x807fffffu) | (uint32_t)(0x70 + (r >> 32) % 24) << 23);
    case 2: return from_bits((any & 0x807fffffu) | (uint32_t)((r >> 32) % 30) << 23);
    default: return from_bits((uint32_t)corners[(r >> 32) % (sizeof corners / sizeof *corners)] << 16 | (any & 1));
    }
}

static uint32_t a[COUNT], b[COUNT];
static float before[COUNT], native[COUNT], emulated[COUNT];

static int same(float x, float y) {
    return bits_of(x) == bits_of(y) || (isnan(x) && isnan(y));
}

static int fail(const char *what, int i, float got, float expected) {
    printf("FAILED %s: pairs %08x and %08x to %08x: %08x, not %08x\n", what, (unsigned)a[i], (unsigned)b[i],
           (unsigned)bits_of(before[i]), (unsigned)bits_of(got), (unsigned)bits_of(expected));
    return 1;
}

static int is_plain(float x) {
    return x == 0 || fabsf(x) >= 0x1p-52f;
}

/* Where no element is small, and what is added to is no smaller than such products are, nothing is flushed. */
static int check_definition(int i) {
    float a1 = from_bf16(a[i] >> 16), b1 = from_bf16(b[i] >> 16), a0 = from_bf16(a[i] & 0xffff), b0 = from_bf16(b[i] & 0xffff);
    if (!is_plain(a0) || !is_plain(a1) || !is_plain(b0) || !is_plain(b1)) return 0;
    if (!(before[i] == 0 || fabsf(before[i]) >= 0x1p-90f)) return 0;
    float expected = fmaf(a0, b0, fmaf(a1, b1, before[i]));
    return same(emulated[i], expected) ? 0 : fail("the emulation is not two fused steps", i, emulated[i], expected);
}

static int check_dots(int here) {
    for (int trial = 0; trial < TRIALS; trial++) {
        for (int i = 0; i < COUNT; i++) {
            int kind = (int)(roll() >> 62);
            a[i] = element(kind) << 16 | element(kind);
            b[i] = element(kind) << 16 | element(kind);
            before[i] = native[i] = emulated[i] = sum(kind, a[i], b[i]);
        }
        dots_avx512_bf16_emulated(a, b, emulated, VECTORS);
        if (here) dots_avx512_bf16(a, b, native, VECTORS);
        for (int i = 0; i < COUNT; i++) {
            if (check_definition(i)) return 1;
            if (here && !same(native[i], emulated[i]))
                return fail("the instruction is not its emulation", i, native[i], emulated[i]);
        }
    }
    return 0;
}

/* One product of tiles: a and b are rows of 32 elements, the two of a pair next to each other. */
enum { ROWS = 16, PAIRS = 16 };

static int fail_tile(const char *what, int i, float got, float expected) {
    printf("FAILED %s: row %d, column %d of a tile: %08x, not %08x\n", what, i / ROWS, i % ROWS, (unsigned)bits_of(got),
           (unsigned)bits_of(expected));
    return 1;
}

static int check_tile_definition(const uint16_t *left, const uint16_t *right, int rows) {
    for (int i = 0; i < rows * ROWS; i++) {
        float part[2] = {0, 0};
        int plain = before[i] == 0 || fabsf(before[i]) >= 0x1p-90f;
        for (int x = 0; x < 2 * PAIRS; x++) {
            float l = from_bf16(left[i / ROWS * 2 * PAIRS + x]);
            float r = from_bf16(right[x / 2 * 2 * PAIRS + i % ROWS * 2 + x % 2]);
            plain &= is_plain(l) && is_plain(r);
            part[x % 2] = fmaf(l, r, part[x % 2]);
        }
        float expected = before[i] + (part[0] + part[1]);
        if (plain && !same(emulated[i], expected))
            return fail_tile("the emulation is not two chains and a sum", i, emulated[i], expected);
    }
    for (int i = rows * ROWS; i < ROWS * ROWS; i++)
        if (!same(emulated[i], before[i])) return fail_tile("a row beyond the last", i, emulated[i], before[i]);
    return 0;
}

static int check_tiles(int here) {
    static uint16_t left[ROWS * 2 * PAIRS], right[PAIRS * 2 * ROWS];
    for (int trial = 0; trial < TRIALS * 4; trial++) {
        int hostile = trial % 2, rows = 1 + (int)(roll() % ROWS);
        for (int i = 0; i < ROWS * 2 * PAIRS; i++) {
            int kind = hostile && roll() % 8 == 0 ? (int)(roll() >> 62) : 1;
            left[i] = (uint16_t)element(kind);
            right[i] = (uint16_t)element(kind);
        }
        for (int i = 0; i < ROWS * ROWS; i++)
            before[i] = native[i] = emulated[i] = sum(hostile ? (int)(roll() >> 62) : 1, left[i] * 65536u, right[i] * 65536u);
        tiles_amx_bf16_emulated(left, right, emulated, rows);
        if (check_tile_definition(left, right, rows)) return 1;
        if (here) tiles_amx_bf16(left, right, native, rows);
        for (int i = 0; here && i < ROWS * ROWS; i++)
            if (!same(native[i], emulated[i]))
                return fail_tile("the instruction on tiles is not its emulation", i, native[i], emulated[i]);
    }
    return 0;
}

/* Weights and elements of q are never subnormal; nor are they here. */
static int check_rounds(int here) {
    uint16_t y[2][COUNT];
    for (int trial = 0; trial < TRIALS / 4; trial++) {
        for (int i = 0; i < COUNT; i++) {
            do before[i] = sum((int)(roll() >> 62), 0x3f80u << 16, 0x3f80u << 16);
            while (before[i] != 0 && fabsf(before[i]) < 0x1p-126f);
        }
        rounds_avx512_bf16_emulated(before, y[0], VECTORS);
        memcpy(y[1], y[0], sizeof y[1]);
        if (here) rounds_avx512_bf16(before, y[1], VECTORS);
        for (int i = 0; i < COUNT; i++)
            if (!same(from_bf16(y[0][i]), from_bf16(y[1][i]))) {
                printf("FAILED rounding %08x: %04x, not %04x\n", (unsigned)bits_of(before[i]), y[1][i], y[0][i]);
                return 1;
            }
    }
    return 0;
}

int main(int count, char **words) {
    tp_machine machine;
    if (count > 1) state = strtoull(words[1], NULL, 10);
    if (tp_machine_detect(&machine, NULL) != TP_OK) return 1;
    int here = (machine.isa & TP_ISA_AVX512_BF16) != 0, tiles_here = (machine.isa & TP_ISA_AMX_BF16) != 0;
    static const char *const how[] = {"emulated", "by the instruction and emulated"};
    if (!here) printf("not run here: the instruction on pairs of bf16, which this host lacks\n");
    if (!tiles_here) printf("not run here: the instruction on tiles of bf16, which this host lacks\n");
    int failed = check_dots(here) || check_rounds(here) || check_tiles(tiles_here);
    printf("%d sums of two products, %s, %d products of tiles, %s, seed %s: %s\n", COUNT * TRIALS, how[here], TRIALS * 4,
           how[tiles_here], count > 1 ? words[1] : "1", failed ? "FAILED" : "passed");
    return failed;
}
