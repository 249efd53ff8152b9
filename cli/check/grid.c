/* SPDX-License-Identifier: Apache-2.0 */
/* The generated grid: each group varies one thing over its borders, the last varies everything. */
#include "check/check.h"

#include <stdarg.h>
#include <stdlib.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct tensors_style plain = {.lse = 1};
static const char *const dtypes[] = {"f32", "bf16", "f16"};
static const char *const masks[] = {"", " causal", " causal top-left"};

static void add_dtypes(struct check_list *list) {
    static const char *const words[] = {"f32",
                                        "f32->bf16",
                                        "f32->f16",
                                        "bf16",
                                        "bf16->f32",
                                        "bf16->f16",
                                        "bf16 p=bf16",
                                        "f16 p=bf16",
                                        "f16",
                                        "f16->f32",
                                        "f16->bf16",
                                        "f32:bf16:bf16->f32",
                                        "f16:bf16:f32->bf16",
                                        "bf16:f32:f16->f32"};
    for (size_t i = 0; i < COUNT(words); i++)
        for (size_t m = 0; m < COUNT(masks); m++)
            check_add(list, "dtype", "", NULL, plain, "b2 h4/2 q37 k131 d64/48 %s%s", words[i],
                      masks[m]);
}

static void add_head_dims(struct check_list *list) {
    static const int across[][2] = {
        {16, 16},   {32, 32},   {40, 40},   {63, 63},   {64, 64},   {65, 65},   {72, 72},
        {80, 80},   {96, 96},   {112, 112}, {127, 127}, {128, 128}, {129, 129}, {160, 160},
        {192, 128}, {256, 256}, {257, 257}, {320, 320}, {512, 512}, {576, 512}, {576, 576},
        {64, 1},    {1, 64},    {17, 33},   {128, 576}, {3, 129},   {96, 80}};
    for (size_t i = 0; i < COUNT(across); i++)
        for (size_t t = 0; t < COUNT(dtypes); t++)
            check_add(list, "head-dim", "", NULL, plain, "h2/1 q13 k%d d%d/%d %s%s",
                      tp_block_keys(across[i][0] > across[i][1] ? across[i][0] : across[i][1]) + 3,
                      across[i][0], across[i][1], dtypes[t], masks[(i + t) % 3]);
    for (int d = 1; d <= TP_MAX_HEAD_DIM; d++) /* every one, v of another size at odd ones */
        check_add(list, "head-dim", "", NULL, plain, "h2/1 q3 k19 d%d/%d %s%s", d,
                  d % 2 ? 1 + d * 37 % TP_MAX_HEAD_DIM : d, dtypes[d % 3], masks[d / 3 % 3]);
}

static void add_groups(struct check_list *list) {
    static const int ratios[] = {1, 2, 3, 5, 7, 8, 71};
    for (size_t i = 0; i < COUNT(ratios); i++)
        for (int kv_heads = 1; kv_heads <= 3; kv_heads++)
            for (size_t m = 0; m < COUNT(masks); m++) {
                int rows = m == 1 ? 1 : 4;
                check_add(list, "group", "", NULL, plain, "h%d/%d q%d k77 d32 %s%s",
                          ratios[i] * kv_heads, kv_heads, rows, dtypes[i % 3], masks[m]);
            }
}

/* Windows at the borders of register tiles, of key blocks and of the sequence. */
static void add_windows(struct check_list *list, int dim, int keys, int rows, int step) {
    int block = tp_block_keys(dim), at = 0; /* step: odd, so that it meets every combination */
    const int widths[] = {0,  1,  2,  5,         6,     7,         15,       16,   17,
                          31, 32, 33, block - 1, block, block + 1, keys - 1, keys, keys + 1};
    for (size_t i = 0; i < COUNT(widths); i++) {
        const int w = widths[i];
        const int sides[][2] = {{w, 0}, {0, w}, {w, w}, {w, -1}, {-1, w}, {w, 1}};
        for (size_t s = 0; s < COUNT(sides); s++)
            for (int a = 0; a < 4; a++, at++)
                if (at % step == 0)
                    check_add(list, "mask", "", NULL, plain, "h2/1 q%d k%d d%d %s%s%s window=%d,%d",
                              rows, keys, dim, dtypes[(i + s) % 3], a % 2 ? " top-left" : "",
                              a / 2 ? " causal" : "", sides[s][0], sides[s][1]);
    }
}

static void add_masks(struct check_list *list) {
    static const int lengths[][2] = {{150, 150}, {70, 150}, {150, 70}, {1, 150}, {150, 1}};
    for (size_t i = 0; i < COUNT(lengths); i++)
        for (size_t m = 0; m < COUNT(masks); m++)
            for (size_t t = 0; t < COUNT(dtypes); t++)
                check_add(list, "mask", "", NULL, plain, "h2/1 q%d k%d d40 %s%s", lengths[i][0],
                          lengths[i][1], dtypes[t], masks[m]);
    add_windows(list, 257, 150, 150, 3);
    add_windows(list, 260, 150, 70, 5);
    add_windows(list, 260, 70, 150, 5);
    add_windows(list, 16, 1030, 40, 3);
    add_windows(list, 8, 530, 530, 7);
    check_add(list, "mask", "", NULL, plain, "q90 k90 d16 f32 causal window=40,3 window=20,-1");
}

static void add_lengths(struct check_list *list) {
    static const int dims[] = {64, 128, 256, 576}, few[] = {1, 3, 17};
    for (size_t d = 0; d < COUNT(dims); d++) {
        int block = tp_block_keys(dims[d]);
        const int keys[] = {0,         1,
                            2,         15,
                            16,        17,
                            block - 1, block,
                            block + 1, 2 * block - 1,
                            2 * block, 2 * block + 1};
        for (size_t i = 0; i < COUNT(keys); i++)
            for (size_t q = 0; q < COUNT(few); q++)
                check_add(list, "length", "", NULL, plain, "h3/1 q%d k%d d%d %s%s", few[q], keys[i],
                          dims[d], dtypes[(i + q) % 3], masks[(i + d + q) % 3]);
        if (dims[d] > 128) continue;
        const int chunks[] = {TP_CHUNK_KEYS, TP_CHUNK_KEYS + 16, TP_CHUNK_KEYS + block,
                              2 * TP_CHUNK_KEYS, 2 * TP_CHUNK_KEYS + block};
        for (size_t i = 0; i < COUNT(chunks); i++)
            for (int near = -1; near <= 1; near++)
                for (int q = 1; q <= 5; q += 4)
                    check_add(list, "length", "", NULL, plain, "q%d k%d d%d %s%s", q,
                              chunks[i] + near, dims[d], dtypes[(size_t)(near + 1)],
                              masks[i % 2 ? 0 : 1]);
    }
    for (int q = 0; q <= 50; q++)
        check_add(list, "length", "", NULL, plain, "h%d/1 q%d k40 d24 %s%s", 1 + q % 3, q,
                  dtypes[q % 3], masks[q / 3 % 3]);
    /* borders of a range of merged rows, with one head and with three in a group */
    static const int ranges[][2] = {{1, 2047}, {1, 2048}, {1, 2049}, {3, 682}, {3, 683}, {3, 1366}};
    for (size_t i = 0; i < COUNT(ranges); i++)
        check_add(list, "length", "", NULL, plain, "h%d/1 q%d k70 d16 f32%s", ranges[i][0],
                  ranges[i][1], masks[i % 3]);
    check_add(list, "length", "", NULL, plain, "b0 q4 k4 d16 f32");
    check_add(list, "length", "", NULL, plain, "b2 q0 k0 d16 f32 causal");
    check_add(list, "length", "", NULL, plain, "h2/1 seqs=1x0/5,1x3/0,1x2/9 d16 bf16 packed");
}

static void add_layouts(struct check_list *list) {
    static const char *const equal = "seqs=1x7/7,1x0/0,2x33/33,1x1/1";
    static const char *const mixed = "seqs=1x7/20,1x0/5,1x33/70,1x1/300,1x9/0";
    static const char *const words[] = {"packed", "padded", "packed-q padded", "packed-kv padded"};
    static const char *const some[] = {"", " causal", " top-left window=5,2"};
    for (int form = FORM_TOKENS; form <= FORM_BROADCAST; form++)
        for (int variant = 0; variant < 8; variant++) {
            struct tensors_style style = {.form = (enum tensors_form)form,
                                          .index64 = variant & 1,
                                          .ragged = variant >> 1 & 1,
                                          .slack = variant >> 2 & 1 ? 3 : 0,
                                          .lse = variant != 5};
            const char *lengths = form == FORM_QKV ? equal : mixed;
            for (size_t w = 0; w < (form == FORM_QKV ? 2 : COUNT(words)); w++)
                for (size_t m = 0; m < COUNT(some); m++)
                    check_add(list, "layout", "", NULL, style, "h4/2 %s d24/%d %s %s%s", lengths,
                              form == FORM_QKV ? 24 : 40, dtypes[(w + m) % 3], words[w], some[m]);
            if (style.slack) continue;
            for (size_t m = 0; m < COUNT(some); m++)
                check_add(list, "layout", "", NULL, style, "b3 h6/2 q21 k%d d24 %s%s",
                          form == FORM_QKV ? 21 : 50, dtypes[m], some[m]);
        }
}

/* Flat to peaked rows, and scales that are legal but odd. */
static void add_scores(struct check_list *list) {
    static const double gains[] = {0.25, 1, 4, 8, 30};
    static const char *const scales[] = {"",         " scale=0",     " scale=-0.3",
                                         " scale=1", " scale=1e-30", " scale=2.5"};
    for (size_t g = 0; g < COUNT(gains); g++)
        for (size_t s = 0; s < COUNT(scales); s++)
            for (size_t t = 0; t < COUNT(dtypes); t++) {
                struct tensors_style style = {.lse = 1, .gain = gains[g]};
                check_add(list, "score", "", NULL, style, "q64 k600 d32 %s%s%s", dtypes[t],
                          masks[(g + s) % 3], scales[s]);
            }
}

static void add_long(struct check_list *list) {
    static const char *const texts[] = {"q64 k131072 d16 f32 causal",
                                        "q64 k131071 d8 bf16",
                                        "q70 k131072 d64 f16 causal window=8191,0",
                                        "q65 k65537 d64 bf16 causal window=20000,0",
                                        "q64 k20000 d128 bf16 causal",
                                        "h64/8 q1 k16384 d64 bf16 causal",
                                        "q4099 k4099 d32 f32 causal window=511,0",
                                        "q2500 k5000 d16 bf16 causal top-left"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct check_case *test = check_add(list, "long", "", NULL, plain, "%s", texts[i]);
        test->slow = 1;
        test->rows = 32; /* the edges and as many others: each row is as long as a whole case elsewhere */
    }
}

/* Every form of codes by both loops, in every layout; the dims have tails where they may. */
static void add_quantised(struct check_list *list) {
    static const struct {
        const char *words;
        int dim, dim_v;
    } forms[] = {{"bf16:i8:i8", 70, 45},       {"f32:i8:i8 scales=q8_0", 64, 96},
                 {"f16:i4:i4", 70, 46},        {"bf16:e4m3:e4m3", 33, 128},
                 {"bf16:bf16:i4", 17, 66},     {"f32:e4m3:i8 scales=token", 128, 40},
                 {"f32:i8:f16 scales=q8_0", 32, 9}};
    static const char *const layouts[] = {"", " paged=16", " packed-q paged=5", " padded", " packed", " paged=7 sparse=40"};
    const struct tensors_style styles[] = {plain, {.form = FORM_HEADS, .lse = 1, .ragged = 1}};
    for (size_t i = 0; i < COUNT(forms); i++)
        for (size_t w = 0; w < COUNT(layouts); w++)
            for (int rows = 3; rows <= 40; rows += 37)
                check_add(list, "quantised", "", NULL, styles[(i + w) % 2], "b2 h6/2 q%d k%d d%d/%d %s%s%s", rows,
                          rows == 3 ? 1100 : 300, forms[i].dim, forms[i].dim_v, forms[i].words, layouts[w],
                          w == 5 ? "" : masks[(i + w) % 3]);
}

static uint64_t draw(uint64_t *state, uint64_t below) {
    return random_bits(0x5EED, 3, (*state)++) % below;
}

static void add_random(struct check_list *list, uint64_t seed) {
    static const char *const layouts[] = {"", "", " packed", " padded"};
    uint64_t state = seed * 1000003;
    for (int i = 0; i < 300; i++) {
        struct tensors_style style = {.form = draw(&state, 2) ? FORM_TOKENS : FORM_HEADS,
                                      .index64 = (int)draw(&state, 2),
                                      .ragged = (int)draw(&state, 2),
                                      .lse = draw(&state, 4) != 0};
        int heads = 1 + (int)draw(&state, 3), ratio = 1 + (int)draw(&state, 6);
        int dim = 1 + (int)draw(&state, draw(&state, 4) ? 140 : TP_MAX_HEAD_DIM);
        int dim_v = draw(&state, 2) ? dim : 1 + (int)draw(&state, 140);
        char mask[96] = "";
        int used = snprintf(mask, sizeof mask, "%s%s", draw(&state, 2) ? " causal" : "",
                            draw(&state, 3) ? "" : " top-left");
        if (!draw(&state, 3))
            snprintf(mask + used, sizeof mask - (size_t)used, " window=%d,%d",
                     (int)draw(&state, 90) - 1, (int)draw(&state, 90) - 1);
        char label[16];
        snprintf(label, sizeof label, "#%d", i);
        check_add(list, "random", label, NULL, style, "b%d h%d/%d q%d k%d d%d/%d %s:%s:%s->%s%s%s",
                  1 + (int)draw(&state, 3), heads * ratio, heads, (int)draw(&state, 60),
                  (int)draw(&state, 300), dim, dim_v, dtypes[draw(&state, 3)],
                  dtypes[draw(&state, 3)], dtypes[draw(&state, 3)], dtypes[draw(&state, 3)],
                  layouts[draw(&state, 4)], mask);
    }
}

void check_add_grid(struct check_list *list, uint64_t seed) {
    add_long(list); /* first, so that no thread is left alone with them at the end */
    add_dtypes(list);
    add_head_dims(list);
    add_groups(list);
    add_masks(list);
    add_lengths(list);
    add_layouts(list);
    add_scores(list);
    add_quantised(list);
    add_random(list, seed);
}
