/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head latent attention: dims and scale. */
#include "text.h"

#include <math.h>
#include <string.h>

/* Class defaults that differ from the first row, deepseek's. */
static const struct dims {
    const char *type;
    int64_t nope, rope, latent, v;
} dims[] = {
    {"", 128, 64, 512, 128},
    {"axk2", 64, 32, 128, 64},
    {"mistral4", 64, 64, 256, 128},
    {"minicpm3", 64, 32, 256, 64},
    {"glm4_moe_lite", 192, 64, 512, 256},
    {"glm_moe_dsa", 192, 64, 512, 256},
};

static const struct dims *dims_of(const char *type) {
    size_t at = sizeof dims / sizeof *dims - 1;
    while (at > 0 && strcmp(type, dims[at].type)) at--;
    return &dims[at];
}

/* Prefill works on heads of nope + rope dims; decode, absorbed, on one KV head of the latents. */
tp_status tp__text_latent(tp__text *text) {
    tp_layer_group *base = &text->base;
    tp__scope *scope = text->scope;
    const struct dims *usual = dims_of(text->family->type);
    int64_t nope = usual->nope, rope = usual->rope, latent = usual->latent, v = usual->v, head_dim = 0, whole = 0;
    tp__state state;
    TP_TRY(tp__scope_count(scope, "qk_nope_head_dim", 1, 1 << 20, &nope));
    TP_TRY(tp__scope_count(scope, "qk_rope_head_dim", 2, 1 << 20, &rope));
    TP_TRY(tp__scope_count(scope, "kv_lora_rank", 1, 1 << 20, &latent));
    TP_TRY(tp__scope_count(scope, "v_head_dim", 1, 1 << 20, &v));
    TP_TRY(tp__scope_int(scope, "head_dim", 1, 1 << 20, &head_dim, &state));
    TP_TRY(tp__scope_int(scope, "qk_head_dim", 1, 1 << 20, &whole, &state));
    if (head_dim && head_dim != rope && head_dim != nope + rope)
        return tp__scope_fail(scope, TP_INVALID, "head_dim",
                              "is %lld: with latents it must be qk_rope_head_dim or the sum %lld",
                              (long long)head_dim, (long long)(nope + rope));
    if (whole && whole != nope + rope)
        return tp__scope_fail(scope, TP_INVALID, "qk_head_dim",
                              "is %lld: it must be qk_nope_head_dim + qk_rope_head_dim, %lld",
                              (long long)whole, (long long)(nope + rope));
    if (base->kv_heads != base->q_heads)
        return tp__scope_fail(scope, TP_UNSUPPORTED, "num_key_value_heads",
                              "is %lld and there are %lld heads: with latents they must be as many",
                              (long long)base->kv_heads, (long long)base->q_heads);
    base->head_dim_qk = nope + rope;
    base->head_dim_v = v;
    base->decode_kv_heads = 1;
    base->decode_dim_qk = latent + rope;
    base->decode_dim_v = latent;
    base->rope_dims = rope;
    return TP_OK;
}

/* yarn's mscale, squared: once for q and once for k. */
void tp__text_latent_scale(tp__text *text) {
    const tp__rope *rope = &text->rope;
    if (rope->kind == TP_ROPE_DEFAULT || rope->mscale_all_dim == 0 || rope->factor <= 1) return;
    double mscale = 0.1 * rope->mscale_all_dim * log(rope->factor) + 1;
    text->base.scale *= mscale * mscale;
    text->base.scale_source = "1/sqrt(d) * mscale^2";
}
