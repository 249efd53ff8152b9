/* SPDX-License-Identifier: Apache-2.0 */
/* A tp_rotary: made once from options, then only read. */
#include "rope/rope.h"

#include <stdlib.h>
#include <string.h>

#include "base/control.h"
#include "base/structs.h"

/* Which position a pair goes by. Where sections interleave, time, height and width take turns; time has what the others leave. */
static unsigned char axis_of(const tp_rope_options *o, int64_t pair) {
    if (o->sections_interleave) {
        int64_t turn = pair % 3;
        return (unsigned char)(pair < 3 * (int64_t)o->sections[turn] ? turn : 0);
    }
    if (o->sections[0] + o->sections[1] + o->sections[2] == 0 || pair < o->sections[0]) return 0;
    return pair < o->sections[0] + o->sections[1] ? 1 : 2;
}

static tp_status make(const tp_rope_options *o, tp_rotary **made, tp_error *error) {
    int64_t pairs = o->kind == TP_ROPE_PROPORTIONAL ? o->head_dim / 2 : o->dims / 2;
    int lists = o->kind == TP_ROPE_LONGROPE ? 2 : 1;
    size_t bytes = sizeof(tp_rotary) + (size_t)pairs * ((size_t)lists * sizeof(double) + 1);
    tp_rotary *rotary = calloc(1, bytes);
    TP_REQUIRE(rotary != NULL, error, TP_NO_MEMORY, "no memory for a rotation of %lld pairs, %zu bytes", (long long)pairs, bytes);
    rotary->options = *o;
    rotary->pairs = pairs;
    rotary->attention = tp__rope_attention(o);
    rotary->frequency = (double *)(rotary + 1);
    rotary->axis = (unsigned char *)(rotary->frequency + lists * pairs);
    if (o->cos_table == NULL) tp__rope_frequencies(o, pairs, 1, rotary->frequency);
    if (lists == 2) {
        rotary->long_frequency = rotary->frequency + pairs;
        tp__rope_frequencies(o, pairs, o->original_length + 1, rotary->long_frequency);
    }
    for (int64_t i = 0; i < pairs; i++) rotary->axis[i] = axis_of(o, i);
    rotary->options.short_factors = rotary->options.long_factors = NULL;
    *made = rotary;
    return TP_OK;
}

tp_status tp_rope_create(const tp_rope_options *options, tp_rotary **made, tp_error *error) {
    TP_STRUCT_IN(tp_rope_options, options, error);
    TP_REQUIRE(made != NULL, error, TP_INVALID, "made is NULL: it must lead to where the rotation goes");
    tp_rope_options whole = *options;
    fenv_t saved = tp__fenv_take();
    tp_status status = tp__rope_check(&whole, error);
    if (status == TP_OK) status = make(&whole, made, error);
    tp__fenv_restore(saved);
    return status;
}

void tp_rope_destroy(tp_rotary *rotary) {
    free(rotary);
}

int64_t tp_rope_pairs(const tp_rotary *rotary) {
    return rotary == NULL ? 0 : rotary->pairs;
}
