/* SPDX-License-Identifier: Apache-2.0 */
/* A decision as people and as programs read it. Both speak of the same fields. */
#include <string.h>

#include "base/control.h"
#include "telemetry/emit.h"

static const char *tier_name(int32_t tier) {
    static const char *const names[] = {"first tier", "lower tier", "math"};
    return tier >= 0 && tier <= TP_TIER_MATH ? names[tier] : "?";
}

static void write_text(tp__emit *e, const tp_decision *d) {
    const tp_candidate *taken = tp_decision_candidate(d, d->chosen);
    tp__emit_text(e, "problem    %s\n", d->problem);
    tp__emit_text(e, "class      %s\n", d->problem_class);
    if (strcmp(d->device, "cpu") != 0) tp__emit_text(e, "device     %s\n", d->device);
    if (taken != NULL)
        tp__emit_text(e, "kernel     %s (%s)%s\n", taken->kernel, taken->strategy, d->fallback ? ", a FALLBACK" : "");
    else
        tp__emit_text(e, "kernel     none: %s\n", tp_status_name((tp_status)d->status));
    for (int i = 0; i < d->candidate_count; i++) {
        const tp_candidate *c = tp_decision_candidate(d, i);
        tp__emit_text(e, "  %-11s %-8s %-10s %s", c->kernel, c->strategy, tier_name(c->tier),
                      c->chosen ? "taken" : "refused:");
        const tp_reason *why;
        for (int r = 0; (why = tp_candidate_reason(c, r)) != NULL; r++)
            tp__emit_text(e, "%s %s [%s]", r > 0 ? ";" : "", why->text, tp_reason_name((tp_reason_code)why->code));
        tp__emit_text(e, "\n");
    }
    if (d->hint[0] != '\0') tp__emit_text(e, "hint       %s\n", d->hint);
    if (taken != NULL) tp__emit_text(e, "numerics   %s\n", d->numerics_id);
    if (d->rewrites & TP_REWRITE_PADDED_V)
        tp__emit_text(e, "rewritten  head_dim_v padded with zero columns in the workspace (exact)\n");
    int writes = taken != NULL && taken->tier == TP_TIER_MATH;
    tp__emit_text(e, "scores     %lld elements a head (%.6g MiB at 16 bits) %s\n",
                  (long long)d->scores_per_head, (double)d->scores_per_head * 2.0 / 1048576.0,
                  writes          ? "WRITTEN to memory, and as many probabilities"
                  : taken != NULL ? "never written"
                                  : "that a fused kernel never writes");
    tp__emit_text(e, "flops      %.6g on %s%lld visible pairs: still quadratic (usual count %.6g)\n",
                  d->flops, d->pairs_exact ? "" : "about ", (long long)d->pairs, d->flops_usual);
    tp__emit_text(e, "bytes      %lld compulsory (%s once), %lld of them k and v\n",
                  (long long)d->bytes_compulsory,
                  strncmp(d->problem, "backward", 8) == 0 ? "q, k, v, o, lse and gradients" : "q, k, v, o",
                  (long long)d->bytes_kv);
    if (d->pages > 0)
        tp__emit_text(e, "pages      %lld, of which those that some row sees are read\n",
                      (long long)d->pages);
    if (d->chunk_keys > 0 && taken != NULL)
        tp__emit_text(e, "loop       %s: %lld chunk%s of %lld keys a sequence, up to %d thread%s busy here\n",
                      taken->strategy, (long long)d->chunks, d->chunks == 1 ? "" : "s",
                      (long long)d->chunk_keys, d->threads, d->threads == 1 ? "" : "s");
    if (taken != NULL)
        tp__emit_text(e, "workspace  %lld bytes with one task\n", (long long)d->workspace_bytes);
}

static void write_json(tp__emit *e, const tp_decision *d) {
    tp__json_open(e, NULL, '{');
    tp__json_string(e, "problem", d->problem);
    tp__json_string(e, "problem_class", d->problem_class);
    tp__json_string(e, "status", tp_status_name((tp_status)d->status));
    if (d->chosen >= 0) tp__json_string(e, "kernel", tp_decision_candidate(d, d->chosen)->kernel);
    tp__json_string(e, "device", d->device);
    tp__json_bool(e, "fallback", d->fallback);
    tp__json_open(e, "candidates", '[');
    for (int i = 0; i < d->candidate_count; i++) {
        const tp_candidate *c = tp_decision_candidate(d, i);
        tp__json_open(e, NULL, '{');
        tp__json_string(e, "kernel", c->kernel);
        tp__json_string(e, "strategy", c->strategy);
        tp__json_string(e, "device", c->device);
        tp__json_string(e, "tier", tier_name(c->tier));
        tp__json_string(e, "arithmetic", tp_arithmetic_name((tp_arithmetic)c->arithmetic));
        tp__json_bool(e, "chosen", c->chosen);
        tp__json_open(e, "reasons", '[');
        const tp_reason *why;
        for (int r = 0; (why = tp_candidate_reason(c, r)) != NULL; r++) {
            tp__json_open(e, NULL, '{');
            tp__json_string(e, "code", tp_reason_name((tp_reason_code)why->code));
            tp__json_int(e, "have", why->have);
            tp__json_int(e, "need", why->need);
            tp__json_string(e, "text", why->text);
            tp__json_close(e, '}');
        }
        tp__json_close(e, ']');
        tp__json_close(e, '}');
    }
    tp__json_close(e, ']');
    tp__json_string(e, "hint", d->hint);
    tp__json_string(e, "numerics_id", d->numerics_id);
    tp__json_string(e, "arithmetic", tp_arithmetic_name((tp_arithmetic)d->arithmetic));
    tp__json_bool(e, "rewrite_padded_v", (d->rewrites & TP_REWRITE_PADDED_V) != 0);
    tp__json_int(e, "pairs", d->pairs);
    tp__json_bool(e, "pairs_exact", d->pairs_exact);
    tp__json_number(e, "flops", d->flops);
    tp__json_number(e, "flops_usual", d->flops_usual);
    tp__json_int(e, "scores_per_head", d->scores_per_head);
    tp__json_int(e, "bytes_compulsory", d->bytes_compulsory);
    tp__json_int(e, "workspace_bytes", d->workspace_bytes);
    tp__json_int(e, "bytes_kv", d->bytes_kv);
    tp__json_int(e, "pages", d->pages);
    tp__json_int(e, "chunk_keys", d->chunk_keys);
    tp__json_int(e, "chunks", d->chunks);
    tp__json_bool(e, "decode", d->decode);
    tp__json_int(e, "threads", d->threads);
    tp__json_close(e, '}');
    tp__emit_text(e, "\n");
}

tp_status tp_decision_write(const tp_decision *decision, tp_format format, tp_write write,
                            void *cookie) {
    tp__emit e = {write, cookie, 0, 0};
    if (decision == NULL || write == NULL || (format != TP_TEXT && format != TP_JSON)) return TP_INVALID;
    fenv_t saved = tp__fenv_take(); /* numbers are printed by the rounding mode */
    if (format == TP_TEXT)
        write_text(&e, decision);
    else
        write_json(&e, decision);
    tp__fenv_restore(saved);
    return e.failed ? TP_INVALID : TP_OK;
}
