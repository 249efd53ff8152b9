/* SPDX-License-Identifier: Apache-2.0 */
/* A receipt as people and as programs read it. */
#include <stdio.h>
#include <string.h>

#include "base/structs.h"
#include "telemetry/emit.h"

/* The plain numbers, once for both forms. */
#define NUMBERS(X)                                                                                 \
    X(pairs_visible) X(pairs_computed) X(padded_rows) X(panels_full) X(panels_partial)               \
    X(panels_skipped) X(panels_conservative) X(bytes_compulsory) X(bytes_model) X(scores_written)    \
    X(workspace_bytes) X(bytes_model_written) X(pairs_shared) X(time_ns)
/* Those of a device. */
#define DEVICE_NUMBERS(X) X(launches) X(tiles) X(device_ns)

static int on_device(const tp_receipt *r) { return strcmp(r->device, "cpu") != 0; }

/* "exact", or "lossy:i8" of a quantised cache: "lossy:i8,i4". */
static const char *loss_of(const tp_receipt *r, char text[48]) {
    size_t used = (size_t)snprintf(text, 48, "%s", r->lossy ? "lossy" : "exact");
    for (int dtype = TP_F32, n = 0; r->lossy && dtype <= TP_I4; dtype++)
        if (r->lossy >> dtype & 1)
            used += (size_t)snprintf(text + used, 48 - used, "%c%s", n++ > 0 ? ',' : ':', tp_dtype_name((tp_dtype)dtype));
    return text;
}

static void write_text(tp__emit *e, const tp_receipt *r) {
    tp__emit_text(e, "problem          %s\n", r->problem);
    tp__emit_text(e, "kernel           %s%s\n", r->kernel, r->fallback ? ", a FALLBACK" : "");
    if (on_device(r)) tp__emit_text(e, "device           %s\n", r->device);
    if (r->status != TP_OK) tp__emit_text(e, "status           %s\n", tp_status_name((tp_status)r->status));
    char loss[48];
    tp__emit_text(e, "numerics         %s, %s", r->numerics_id, loss_of(r, loss));
    if (r->kv_loss != 0) tp__emit_text(e, ", loss %.3g", r->kv_loss);
    tp__emit_text(e, "\n");
    const char *function;
    int64_t calls;
    for (int i = 0; tp_receipt_function(r, i, &function, &calls); i++)
        tp__emit_text(e, "function         %s x %lld\n", function, (long long)calls);
    if (r->rewrites & TP_REWRITE_PADDED_V)
        tp__emit_text(e, "rewritten        head_dim_v padded in the workspace (exact)\n");
    tp__emit_text(e, "tasks            %d\n", r->tasks);
#define NUMBER(field) tp__emit_text(e, "%-16s %lld\n", #field, (long long)r->field);
    NUMBERS(NUMBER)
    if (on_device(r)) {
        DEVICE_NUMBERS(NUMBER)
    }
#undef NUMBER
    if (r->decision == NULL) return;
    for (int i = 0; i < r->decision->candidate_count; i++) {
        const tp_candidate *c = tp_decision_candidate(r->decision, i);
        const tp_reason *why;
        for (int k = 0; (why = tp_candidate_reason(c, k)) != NULL; k++)
            tp__emit_text(e, "refused          %s: %s [%s]\n", c->kernel, why->text,
                          tp_reason_name((tp_reason_code)why->code));
    }
}

static void write_json(tp__emit *e, const tp_receipt *r) {
    tp__json_open(e, NULL, '{');
    tp__json_string(e, "problem", r->problem);
    tp__json_string(e, "status", tp_status_name((tp_status)r->status));
    tp__json_string(e, "kernel", r->kernel);
    tp__json_string(e, "device", r->device);
    tp__json_bool(e, "fallback", r->fallback);
    tp__json_string(e, "numerics_id", r->numerics_id);
    tp__json_string(e, "arithmetic", tp_arithmetic_name((tp_arithmetic)r->arithmetic));
    tp__json_bool(e, "lossy", r->lossy);
    char loss[48];
    tp__json_string(e, "stored", loss_of(r, loss));
    if (r->kv_loss != 0) tp__json_number(e, "kv_loss", r->kv_loss);
    tp__json_bool(e, "rewrite_padded_v", (r->rewrites & TP_REWRITE_PADDED_V) != 0);
    tp__json_open(e, "functions", '{');
    const char *function;
    int64_t calls;
    for (int i = 0; tp_receipt_function(r, i, &function, &calls); i++) tp__json_int(e, function, calls);
    tp__json_close(e, '}');
    tp__json_int(e, "tasks", r->tasks);
    tp__json_bool(e, "planned", r->planned);
#define NUMBER(field) tp__json_int(e, #field, r->field);
    NUMBERS(NUMBER)
    if (on_device(r)) {
        DEVICE_NUMBERS(NUMBER)
    }
#undef NUMBER
    tp__json_open(e, "refused", '[');
    for (int i = 0; r->decision != NULL && i < r->decision->candidate_count; i++) {
        const tp_candidate *c = tp_decision_candidate(r->decision, i);
        const tp_reason *why;
        for (int k = 0; (why = tp_candidate_reason(c, k)) != NULL; k++) {
            tp__json_open(e, NULL, '{');
            tp__json_string(e, "kernel", c->kernel);
            tp__json_string(e, "code", tp_reason_name((tp_reason_code)why->code));
            tp__json_int(e, "have", why->have);
            tp__json_int(e, "need", why->need);
            tp__json_close(e, '}');
        }
    }
    tp__json_close(e, ']');
    tp__json_close(e, '}');
    tp__emit_text(e, "\n");
}

tp_status tp_receipt_write(const tp_receipt *receipt, tp_format format, tp_write write,
                           void *cookie) {
    tp__emit e = {write, cookie, 0, 0};
    if (write == NULL || (format != TP_TEXT && format != TP_JSON)) return TP_INVALID;
    TP_STRUCT_IN(tp_receipt, receipt, NULL);
    if (receipt->kernel == NULL) return TP_INVALID; /* no run has filled it in */
    if (format == TP_TEXT)
        write_text(&e, receipt);
    else
        write_json(&e, receipt);
    return e.failed ? TP_INVALID : TP_OK;
}
