/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "telemetry/record.h"

#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* The first reason of the first candidate of the best tier that has one, and none of these. */
static int first_but(const tp_decision *decision, uint32_t codes) {
    for (int i = 0; i < decision->candidate_count; i++) {
        const tp_candidate *c = tp_decision_candidate(decision, i);
        const tp_reason *why;
        int besides = c->tier == TP_TIER_BEST && c->reason_count > 0;
        for (int r = 0; besides && (why = tp_candidate_reason(c, r)) != NULL; r++)
            besides = !(codes >> why->code & 1);
        if (besides) return tp_candidate_reason(c, 0)->code;
    }
    return 0;
}

int tp__first_reason(const tp_decision *decision) {
    /* of the kernel that could have served; where there is none, of one that is meant for this host and dtype */
    int first = first_but(decision, TP__UNABLE);
    return first != 0 ? first : first_but(decision, 1u << TP_WHY_ISA | 1u << TP_WHY_DTYPE | 1u << TP_WHY_DEVICE);
}

/* A candidate that would have served after the one taken was not refused. */
static int told(int code) { return code != TP_WHY_NOT_BEST; }

static void open_reason(tp__emit *e, const char *kernel, int code) {
    tp__json_open(e, NULL, '{');
    tp__json_string(e, "kernel", kernel);
    tp__json_string(e, "code", tp_reason_name((tp_reason_code)code));
}

static void write_decided(tp__emit *e, const tp_decision *decision) {
    for (int i = 0; i < decision->candidate_count; i++) {
        const tp_candidate *c = tp_decision_candidate(decision, i);
        const tp_reason *why;
        for (int r = 0; (why = tp_candidate_reason(c, r)) != NULL; r++) {
            if (!told(why->code)) continue;
            open_reason(e, c->kernel, why->code);
            tp__json_int(e, "have", why->have);
            tp__json_int(e, "need", why->need);
            tp__json_string(e, "text", why->text);
            tp__json_close(e, '}');
        }
    }
}

static void write_refused(tp__emit *e, const tp__record *r, const tp_decision *decision) {
    tp__json_open(e, "refused", '[');
    if (decision != NULL) write_decided(e, decision);
    for (int i = 0; decision == NULL && i < TP__CANDIDATES_MAX; i++)
        for (int code = 1; r->why.codes[i] >> code != 0; code++) {
            if (!(r->why.codes[i] >> code & 1) || !told(code)) continue;
            open_reason(e, r->names->name[i], code);
            tp__json_close(e, '}');
        }
    tp__json_close(e, ']');
}

static int64_t unix_ns(int64_t monotonic) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - (tp__now_ns() - monotonic);
}

static void write_record(tp__emit *e, const tp__record *r, const char *problem, const tp_decision *decision) {
    tp__json_open(e, NULL, '{');
    tp__json_int(e, "ts_ns", unix_ns(r->start_ns));
    tp__json_int(e, "time_ns", r->amounts.time_ns);
    if (decision != NULL) tp__json_int(e, "thread", (int64_t)syscall(SYS_gettid));
    tp__json_string(e, "status", tp_status_name((tp_status)r->status));
    tp__json_string(e, "kernel", tp__kernel_name(r->names, r->labels.kernel));
    tp__json_string(e, "device", tp__kernel_device(r->names, r->labels.device));
    tp__json_string(e, "problem", problem);
    if (decision != NULL) tp__json_string(e, "class", decision->problem_class);
    tp__json_string(e, "phase", tp__phase_name(r->labels.phase));
    tp__json_string(e, "bucket", tp__bucket_name(r->labels.bucket));
    tp__json_bool(e, "fallback", r->fallback);
    tp__json_bool(e, "planned", r->planned);
    write_refused(e, r, decision);
    tp__json_string(e, "lock", tp_lock_status_name((tp_lock_status)r->lock));
    if (r->model[0] != '\0') tp__json_string(e, "model", r->model);
    if (r->layer >= 0) tp__json_int(e, "layer", r->layer);
    if (r->request[0] != '\0') tp__json_string(e, "request", r->request);
    tp__json_int(e, "bytes_model", r->amounts.bytes);
    tp__json_int(e, "workspace_bytes", r->amounts.workspace);
    tp__json_close(e, '}');
    tp__emit_text(e, "\n");
}

typedef struct line {
    char text[16384]; /* more than 32 reasons and all tags, escaped, take */
    size_t used;
} line;

static int collect(void *cookie, const char *bytes, size_t size) {
    line *l = cookie;
    if (size > sizeof l->text - l->used) return 1;
    memcpy(l->text + l->used, bytes, size);
    l->used += size;
    return 0;
}

int tp__record_send(const tp__record *record, const char *problem, const tp_decision *decision, tp_write write,
                    void *cookie) {
    line l;
    l.used = 0;
    tp__emit e = {collect, &l, 0, 0};
    write_record(&e, record, problem, decision);
    return e.failed ? 0 : write(cookie, l.text, l.used);
}
