/* SPDX-License-Identifier: Apache-2.0 */
/* A whole model on one line, so that a test compares everything at once. */
#ifndef TEST_PROOF_SUMMARY_H
#define TEST_PROOF_SUMMARY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tileproof_proof.h"

/* "text 0-31 h32/8 d128 causal scale=0.0883883 rope=default/128@10000; ..." */
static inline void summarise(const tp_model *model, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
#define PUT(...) used += (size_t)snprintf(text + used, size - used, __VA_ARGS__)
    for (int i = 0; i < model->group_count; i++) {
        const tp_layer_group *g = model->groups[i];
        char layers[512], formula[96];
        assert_int_equal(tp_layer_group_layers(g, layers, sizeof layers), TP_OK);
        assert_int_equal(tp_layer_group_formula(g, formula, sizeof formula), TP_OK);
        PUT("%s%s %s", i ? "; " : "", tp_part_name((tp_part)g->part), layers);
        if (g->out_of_scope) {
            PUT(" out: %s", g->out_of_scope);
            continue;
        }
        PUT(" h%lld/%lld d%lld", (long long)g->q_heads, (long long)g->kv_heads, (long long)g->head_dim_qk);
        if (g->head_dim_v != g->head_dim_qk) PUT("/%lld", (long long)g->head_dim_v);
        if (g->decode_dim_qk)
            PUT(" decode=%lld:%lld/%lld", (long long)g->decode_kv_heads, (long long)g->decode_dim_qk,
                (long long)g->decode_dim_v);
        if (g->dtype) PUT(" %s", tp_dtype_name((tp_dtype)g->dtype));
        PUT(" %s", formula);
        if (g->all_of & TP_TERM_WINDOW)
            PUT(" w=%lld,%lld", (long long)g->window_left, (long long)g->window_right);
        if (g->chunk) PUT(" c=%lld", (long long)g->chunk);
        if (g->span) PUT(" span=%lld", (long long)g->span);
        if (g->prefix) PUT(" prefix=%lld", (long long)g->prefix);
        if (g->sparse) PUT(" sparse=%lld", (long long)g->sparse);
        PUT(" scale=%.6g", g->scale);
        if (g->softcap > 0) PUT(" cap=%g", g->softcap);
        if (g->sinks) PUT(" sinks");
        if (g->alibi) PUT(" alibi");
        if (g->query_scale_beta > 0)
            PUT(" qscale=%g/%lld+%lld", g->query_scale_beta, (long long)g->query_scale_period,
                (long long)g->query_scale_offset);
        if (g->rope) PUT(" rope=%s/%lld@%g", tp_rope_name((tp_rope)g->rope), (long long)g->rope_dims, g->rope_theta);
        if (g->rope_factor > 0) PUT("x%g", g->rope_factor);
        if (g->mrope_section[0])
            PUT(" mrope=%d,%d,%d%s", (int)g->mrope_section[0], (int)g->mrope_section[1],
                (int)g->mrope_section[2], g->mrope_interleaved ? "i" : "");
    }
#undef PUT
}

#endif
