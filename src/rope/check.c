/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of tp_rope_options. */
#include "rope/rope.h"

enum { NEEDS_FACTOR = 1, NEEDS_LENGTH = 2, TAKES_FACTOR = 4, NEEDS_GROWTH = 8 /* theta above 1 */ };

static const struct {
    const char *name;
    int needs;
} kinds[] = {
    [TP_ROPE_NONE] = {"none", 0},
    [TP_ROPE_DEFAULT] = {"default", 0},
    [TP_ROPE_LINEAR] = {"linear", NEEDS_FACTOR},
    [TP_ROPE_DYNAMIC] = {"dynamic", NEEDS_FACTOR | NEEDS_LENGTH | NEEDS_GROWTH},
    [TP_ROPE_YARN] = {"yarn", NEEDS_FACTOR | NEEDS_LENGTH | NEEDS_GROWTH},
    [TP_ROPE_LONGROPE] = {"longrope", TAKES_FACTOR | NEEDS_LENGTH},
    [TP_ROPE_LLAMA3] = {"llama3", NEEDS_FACTOR | NEEDS_LENGTH | NEEDS_GROWTH},
    [TP_ROPE_2D] = {"2d", 0},
    [TP_ROPE_PROPORTIONAL] = {"proportional", TAKES_FACTOR},
};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

#define RULE(condition, ...) TP_REQUIRE(condition, error, TP_INVALID, __VA_ARGS__)

/* Limits with which every frequency and angle is a number, in float32 too. NaN is in no range. */
#define FACTORS "in 1e-6..1e9"
static int is_factor(double x) {
    return x >= 1e-6 && x <= 1e9;
}
static int is_factor_or_none(double x) {
    return x == 0 || is_factor(x);
}

static tp_status check_dims(tp_rope_options *o, tp_error *error) {
    RULE(o->head_dim >= 1 && o->head_dim <= TP__ROPE_DIM_MAX, "head_dim is %lld: it must be in 1..%d", (long long)o->head_dim,
         TP__ROPE_DIM_MAX);
    RULE(o->first >= 0 && o->first < o->head_dim, "first is %lld and head_dim %lld: the first rotated dim must be one of a row",
         (long long)o->first, (long long)o->head_dim);
    if (o->dims == 0 && o->kind != TP_ROPE_NONE) o->dims = o->head_dim - o->first;
    RULE(o->kind != TP_ROPE_NONE || o->dims == 0, "dims is %lld and the kind none: nothing is rotated then, so dims must be 0",
         (long long)o->dims);
    RULE(o->dims >= 0 && o->dims % 2 == 0, "dims is %lld: rotated dims are pairs, so dims must be even and not negative",
         (long long)o->dims);
    RULE(o->dims <= o->head_dim - o->first,
         "dims is %lld, from dim %lld on, and head_dim %lld: rotated dims must lie inside a row", (long long)o->dims,
         (long long)o->first, (long long)o->head_dim);
    RULE(o->kind != TP_ROPE_PROPORTIONAL || (o->first == 0 && o->head_dim % 2 == 0),
         "first is %lld and head_dim %lld: proportional pairs a whole row of even head_dim from dim 0 on", (long long)o->first,
         (long long)o->head_dim);
    RULE(o->kind != TP_ROPE_DYNAMIC || o->dims > 2,
         "dims is %lld: dynamic takes the power dims / (dims - 2), so dims must be above 2", (long long)o->dims);
    return TP_OK;
}

static tp_status check_factors(const tp_rope_options *o, const char *name, const float *factors, tp_error *error) {
    if (o->kind != TP_ROPE_LONGROPE) {
        RULE(factors == NULL, "%s are given and the kind is %s: only longrope has them; leave them NULL", name,
             kinds[o->kind].name);
        return TP_OK;
    }
    RULE(factors != NULL, "%s are NULL: longrope needs dims / 2 of them, %lld", name, (long long)(o->dims / 2));
    for (int64_t i = 0; i < o->factor_count; i++)
        RULE(is_factor(factors[i]), "%s[%lld] is %g: factors must be " FACTORS, name, (long long)i, factors[i]);
    return TP_OK;
}

static tp_status check_kind(const tp_rope_options *o, tp_error *error) {
    const char *name = kinds[o->kind].name;
    int needs = kinds[o->kind].needs;
    if (needs & NEEDS_FACTOR)
        RULE(is_factor(o->factor), "factor is %g: %s needs one " FACTORS, o->factor, name);
    else if (needs & TAKES_FACTOR)
        RULE(is_factor_or_none(o->factor), "factor is %g: it must be " FACTORS ", or 0 for none", o->factor);
    else
        RULE(o->factor == 0, "factor is %g and the kind %s, which has none: it must be 0", o->factor, name);
    if (needs & NEEDS_LENGTH)
        RULE(o->original_length >= 2 && o->original_length <= (int64_t)1 << 40,
             "original_length is %lld: %s needs the tokens that the model was trained on, in 2..2^40",
             (long long)o->original_length, name);
    if (o->kind == TP_ROPE_LONGROPE) {
        RULE(o->factor_count != 0 || o->short_factors != NULL || o->long_factors != NULL,
             "short_factors and long_factors are not given: longrope needs half the rotated dims of each, %lld, which a config "
             "has as short_factor and long_factor, unless its file was shortened",
             (long long)(o->dims / 2));
        RULE(o->factor_count == o->dims / 2, "factor_count is %lld: it must be half the rotated dims, %lld",
             (long long)o->factor_count, (long long)(o->dims / 2));
    }
    TP_TRY(check_factors(o, "short_factors", o->short_factors, error));
    TP_TRY(check_factors(o, "long_factors", o->long_factors, error));
    if (o->kind == TP_ROPE_LLAMA3)
        RULE(is_factor(o->low_freq_factor) && is_factor(o->high_freq_factor) && o->high_freq_factor > o->low_freq_factor,
             "low_freq_factor is %g and high_freq_factor %g: llama3 needs low < high, both " FACTORS, o->low_freq_factor,
             o->high_freq_factor);
    if (o->kind == TP_ROPE_YARN) {
        RULE(is_factor_or_none(o->beta_fast), "beta_fast is %g: it must be " FACTORS ", or 0 for 32", o->beta_fast);
        RULE(is_factor_or_none(o->beta_slow), "beta_slow is %g: it must be " FACTORS ", or 0 for 1", o->beta_slow);
        RULE(is_factor_or_none(o->mscale), "mscale is %g: it must be " FACTORS ", or 0 for none", o->mscale);
        RULE(is_factor_or_none(o->mscale_all_dim), "mscale_all_dim is %g: it must be " FACTORS ", or 0 for none",
             o->mscale_all_dim);
        RULE(o->yarn_untruncated == 0 || o->yarn_untruncated == 1, "yarn_untruncated is %d: it must be 0 or 1",
             o->yarn_untruncated);
    }
    return TP_OK;
}

static tp_status check_theta(const tp_rope_options *o, tp_error *error) {
    if (o->cos_table == NULL && o->sin_table == NULL) {
        RULE(o->table_positions == 0 && o->table_width == 0,
             "table_positions is %lld and table_width %lld, without tables: both must be 0", (long long)o->table_positions,
             (long long)o->table_width);
        if (o->kind == TP_ROPE_NONE) return TP_OK;
        RULE(o->theta >= 1e-3 && o->theta <= 1e12, "theta is %g: it must be in 1e-3..1e12, or tables must be given", o->theta);
        RULE(!(kinds[o->kind].needs & NEEDS_GROWTH) || o->theta > 1, "theta is %g: %s needs one above 1", o->theta,
             kinds[o->kind].name);
        return TP_OK;
    }
    RULE(o->cos_table != NULL && o->sin_table != NULL, "%s is NULL beside the other table: both must be given, or neither",
         o->cos_table == NULL ? "cos_table" : "sin_table");
    RULE(o->kind == TP_ROPE_DEFAULT,
         "tables are given and the kind is %s: tables have their scaling in them, so it must be default", kinds[o->kind].name);
    RULE(o->theta == 0, "theta is %g and tables are given: one of them must go; set theta to 0", o->theta);
    RULE(o->table_width == o->dims / 2, "table_width is %lld: it must be half the rotated dims, %lld", (long long)o->table_width,
         (long long)(o->dims / 2));
    RULE(o->table_positions >= 1 && o->table_positions <= (int64_t)1 << 40, "table_positions is %lld: it must be in 1..2^40",
         (long long)o->table_positions);
    return TP_OK;
}

static tp_status check_sections(const tp_rope_options *o, tp_error *error) {
    int64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        RULE(o->sections[i] >= 0, "sections[%d] is %d: it must not be negative", i, o->sections[i]);
        sum += o->sections[i];
    }
    RULE(sum == 0 || sum == o->dims / 2, "sections %d, %d, %d add up to %lld: they must add up to half the rotated dims, %lld",
         o->sections[0], o->sections[1], o->sections[2], (long long)sum, (long long)(o->dims / 2));
    RULE(o->sections_interleave == 0 || (o->sections_interleave == 1 && sum != 0),
         "sections_interleave is %d: it must be 0, or 1 where there are sections", o->sections_interleave);
    /* In turns the pairs of height are 1, 4, 7, ..., and those of width 2, 5, 8, ...: more than there are would be time's. */
    for (int axis = 1; axis < 3 && o->sections_interleave; axis++) {
        int64_t turns = (sum + 2 - axis) / 3;
        RULE(o->sections[axis] <= turns,
             "sections %d, %d, %d take turns (sections_interleave): of %lld pairs %s has at most %lld, every third from pair %d "
             "on, and cannot have %d; sections one behind the other have no such limit",
             o->sections[0], o->sections[1], o->sections[2], (long long)sum, axis == 1 ? "height" : "width", (long long)turns,
             axis, o->sections[axis]);
    }
    RULE(sum == 0 || o->kind != TP_ROPE_PROPORTIONAL,
         "sections are given and the kind is proportional, which has one position a token");
    return TP_OK;
}

tp_status tp__rope_check(tp_rope_options *o, tp_error *error) {
    RULE(o->kind >= 0 && o->kind < KIND_COUNT, "kind is %d: it must be a tp_rope, in 0..%d", o->kind, KIND_COUNT - 1);
    TP_REQUIRE(
        o->kind != TP_ROPE_2D, error, TP_UNSUPPORTED,
        "the kind is 2d: a vision tower's rotation by rows and columns of patches is not served; tables with a row a patch are");
    RULE(o->style == TP_ROPE_NEOX || o->style == TP_ROPE_INTERLEAVED, "style is %d: it must be 0 (neox) or 1 (interleaved)",
         o->style);
    RULE(o->angle == TP_ROPE_DOUBLE || o->angle == TP_ROPE_FLOAT32, "angle is %d: it must be 0 (double) or 1 (float32)",
         o->angle);
    RULE(o->reserved == 0, "reserved is %d: it must be 0", o->reserved);
    RULE(is_factor_or_none(o->attention_factor), "attention_factor is %g: it must be " FACTORS ", or 0 for the kind's own",
         o->attention_factor);
    TP_TRY(check_dims(o, error));
    TP_TRY(check_theta(o, error));
    TP_TRY(check_kind(o, error));
    return check_sections(o, error);
}
