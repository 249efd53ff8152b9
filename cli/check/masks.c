/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every mask kind, every sensible pair, and what changes scores: against the double reference at lengths of
 * prefill and of decode, in every dtype and layout; and the classes of tiles against brute force.
 */
#include "check/check.h"

#include <inttypes.h>
#include <math.h>

#include "harness/mask_words.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct tensors_style plain = {.lse = 1};
static const char *const dtypes[] = {"f32", "bf16", "f16"};
static const char *const scores[] = {"softcap=6", "alibi", "bias=f32", "bias=bf16", "bias=f16",
                                     "sinks", "qscale=0.4,16,1", "positions", "dropout=0.3"};

int check_bias_hides(const struct tensors *tensors, int64_t seq, int64_t head, int64_t row,
                     int64_t key) {
    const int64_t *stride = tensors->call.bias_stride;
    tp_dtype dtype = (tp_dtype)tensors->problem.bias_dtype;
    if (!dtype) return 0;
    int64_t at = seq * stride[0] + head * stride[1] + row * stride[2] + key * stride[3];
    const char *bias = tensors->call.bias;
    return tp_to_float(dtype, bias + at * (int64_t)tp_dtype_bytes(dtype)) == -INFINITY;
}

struct tiles {
    int64_t full, partial, skipped, visible, keys;
};

static int sees(const struct tensors *t, int64_t seq, int64_t kv_head, int64_t merged, int64_t key) {
    int64_t group = t->problem.q_heads / t->problem.kv_heads;
    return tp_mask_visible(&t->problem, &t->call, seq, kv_head * group + merged % group, merged / group,
                           key) == 1;
}

/* Strips of mr merged rows against panels of nr keys. */
static void count_tiles(const struct tensors *t, const tp_kernel_info *kernel, int64_t seq,
                        int64_t kv_head, struct tiles *tiles) {
    int64_t rows = t->q_lens[seq] * (t->problem.q_heads / t->problem.kv_heads), keys = t->kv_lens[seq];
    for (int64_t strip = 0; strip < rows; strip += kernel->mr)
        for (int64_t panel = 0; panel < keys; panel += kernel->nr) {
            int64_t mr = rows - strip < kernel->mr ? rows - strip : kernel->mr, seen = 0;
            for (int64_t r = strip; r < strip + mr; r++)
                for (int64_t j = panel; j < panel + kernel->nr && j < keys; j++)
                    seen += sees(t, seq, kv_head, r, j);
            tiles->visible += seen;
            tiles->full += seen == mr * kernel->nr;
            tiles->partial += seen > 0 && seen < mr * kernel->nr;
            tiles->skipped += seen == 0;
        }
}

static int count_is(struct check_env *env, const char *name, int64_t expected, int64_t got) {
    if (expected == got) return 0;
    return check_fail(env, "%s: expected %" PRId64 " by brute force, the receipt says %" PRId64, name,
                      expected, got);
}

static int tiles(struct check_env *env) {
    struct tensors tensors;
    struct tiles t = {0};
    tp_receipt receipt;
    tp_kernel_info kernel = *env->kernel;
    int math = kernel.mr == 0;
    if (math) kernel.mr = kernel.nr = 1 << 20; /* one tile that covers everything */
    int failed = check_make(env, &tensors, &env->test->problem, &env->test->lengths, &env->test->style) ||
                 check_attend_by(env, &tensors, ENTRY_SERIAL, 1, 0xFF, &receipt);
    for (int64_t s = 0; !failed && s < tensors.sequences; s++)
        for (int64_t h = 0; h < tensors.problem.kv_heads; h++) count_tiles(&tensors, &kernel, s, h, &t);
    if (!failed)
        failed = count_is(env, "pairs_visible", t.visible, receipt.pairs_visible) ||
                 (!math && (count_is(env, "panels_full", t.full, receipt.panels_full) ||
                            count_is(env, "panels_partial", t.partial, receipt.panels_partial) ||
                            count_is(env, "panels_skipped", t.skipped, receipt.panels_skipped) ||
                            count_is(env, "panels_conservative",
                                     tensors.problem.bias_dtype ? t.full + t.partial : 0,
                                     receipt.panels_conservative)));
    tensors_destroy(&tensors);
    return failed;
}

/* One text of masks in all the lengths, each with another dtype. */
static void add_lengths(struct check_list *list, const char *masks, size_t turn) {
    static const char *const shapes[] = {
        "h2/1 q150 k150 d260", "b2 h6/2 q70 k300 d40", "h4/2 q5 k700 d64", "b2 h8/1 q1 k90 d128",
        "h4/2 seqs=1x40/90,1x9/9,1x1/300 d24/40 packed", "h2/2 seqs=1x40/90,1x9/9,1x1/300 d33 padded"};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        struct tensors_style style = plain;
        style.index64 = (int)(turn + i) & 1;
        check_add(list, "mask-kind", "", NULL, style, "%s %s %s", shapes[i], dtypes[(turn + i) % 3], masks);
    }
}

static void add_pair(struct check_list *list, const char *one, const char *other, size_t turn) {
    static const char *const shapes[] = {"h2/1 q100 k100 d260", "h4/2 q3 k600 d64",
                                         "h4/2 seqs=1x40/90,1x9/9 d24 packed"};
    check_add(list, "mask-pair", "", NULL, plain, "%s %s %s %s", shapes[turn % 3], dtypes[turn / 3 % 3],
              one, other);
}

/* One word of a kind alone, with every word behind it in the table, and with what changes scores. */
static void add_kind(struct check_list *list, const struct mask_word *word, int index, size_t *turn) {
    struct mask_word other;
    for (int k = index + 1; mask_word_at(k, &other); k++) {
        if (other.info == word->info) continue; /* two words for one kind */
        for (int shape = 0; shape < 3; shape++) add_pair(list, word->text, other.text, (*turn)++);
        check_add(list, "hostile", "tiles", tiles, plain, "h3/1 q50 k%d d260 %s %s %s", 70 + index * 9,
                  dtypes[*turn % 3], word->text, other.text);
    }
    const char *dtype = dtypes[index % 3];
    for (size_t k = 0; k < COUNT(scores); k++) add_pair(list, word->text, scores[k], (*turn)++);
    check_add(list, "hostile", "tiles", tiles, plain, "b2 h4/2 q70 k170 d64 %s %s", dtype, word->text);
    check_add(list, "hostile", "tiles", tiles, plain, "h4/2 q40 k190 d300 %s %s positions", dtype, word->text);
    check_add(list, "hostile", "tiles", tiles, plain, "h4/2 q40 k190 d300 %s %s bias=f32", dtype, word->text);
}

void check_add_masks(struct check_list *list) {
    struct mask_word word;
    size_t turn = 0;
    for (int i = 0; mask_word_at(i, &word); i++) add_lengths(list, word.text, turn++);
    for (size_t i = 0; i < COUNT(scores); i++) {
        add_lengths(list, scores[i], turn++);
        char causal[64];
        snprintf(causal, sizeof causal, "causal %s", scores[i]);
        add_lengths(list, causal, turn++);
    }
    for (int i = 0; mask_word_at(i, &word); i++) add_kind(list, &word, i, &turn);
    for (size_t i = 0; i < COUNT(scores); i++)
        for (size_t k = i + 1; k < COUNT(scores); k++)
            if (!(i >= 2 && k <= 4)) add_pair(list, scores[i], scores[k], turn++);
    static const char *const trees[] = {"mask=causal,first:9,or", "mask=bits,causal,or,window:30:4,and",
                                        "mask=window:5:5,first:3,or,documents,spans,or,and",
                                        "mask=prefix:20,chunk:16,and,causal,or",
                                        "mask=first:2,chunk:16,or,window:0:0,or,prefix:60,and"};
    for (size_t i = 0; i < COUNT(trees); i++) {
        add_lengths(list, trees[i], turn++);
        check_add(list, "hostile", "tiles", tiles, plain, "h3/1 q50 k90 d260 f32 %s", trees[i]);
    }
}
