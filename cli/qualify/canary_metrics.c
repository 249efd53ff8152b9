/* SPDX-License-Identifier: Apache-2.0 */
/* What a canary leaves for node-exporter's textfile collector: when it last passed, its verdicts, the state of the lock. Names
   are those of tp_metrics_write where that has them; ops/alerts.yml goes by them. */
#include "qualify/canary.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness/text_file.h"
#include "tool/files.h"

enum { MAX_BYTES = 1 << 20 };
static const char success[] = "tileproof_canary_last_success_timestamp_seconds";

/* Of the file that is to be replaced: a canary that fails does not forget when one passed. */
static long long last_success(const char *path) {
    tp_error error = TP_ERROR_INIT;
    size_t size, length;
    char *text = text_read(path, MAX_BYTES, &size, &error), *at = text, *line;
    long long seconds = 0;
    while (text && (line = text_line(&at, text + size, &length)))
        if (!strncmp(line, success, sizeof success - 1) && line[sizeof success - 1] == ' ')
            seconds = strtoll(line + sizeof success, NULL, 10);
    free(text);
    return seconds;
}

static void put_head(FILE *out, const char *name, const char *help) {
    fprintf(out, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name);
}

static void put_plain(FILE *out, const char *name, const char *help, long long value) {
    put_head(out, name, help);
    fprintf(out, "%s %lld\n", name, value);
}

/* A label's value. */
static void put_escaped(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') fputc('\\', out);
        if (*text == '\n')
            fputs("\\n", out);
        else
            fputc(*text, out);
    }
}

static void put_state(FILE *out, const char *model, int now) {
    for (int state = 0; state <= TP_LOCK_FAILED; state++) {
        fprintf(out, "tileproof_lock_state{");
        if (*model) {
            fprintf(out, "model=\"");
            put_escaped(out, model);
            fprintf(out, "\",");
        }
        fprintf(out, "state=\"%s\"} %d\n", tp_lock_status_name((tp_lock_status)state), state == now);
    }
}

/* No later revision of its model is of this host; or none with its cache. */
static int is_last(const struct canary *c, int64_t index, int any_cache) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT, next = TP_LOCK_REVISION_INIT;
    tp_lock_revision_at(c->lock, index, &one);
    if (!canary_is_mine(c, &one)) return 0;
    for (int64_t i = index + 1; tp_lock_revision_at(c->lock, i, &next) == TP_OK; i++)
        if (canary_is_mine(c, &next) && !strcmp(one.model, next.model) && (any_cache || !strcmp(one.cache, next.cache))) return 0;
    return 1;
}

static int state_of(const struct canary *c, int64_t index, const tp_lock_revision *one) {
    char why[1024];
    if (tp_lock_revision_fresh(c->lock, index, &c->now, why, sizeof why) != TP_OK) return TP_LOCK_STALE;
    return cell_rank(one->status) > 1 ? TP_LOCK_REFUSED : TP_LOCK_MATCHES;
}

/* Without deployed configs: the last revision of each model that the lock has for this host; where it has several caches, the
   worst of the last ones. */
static int put_locked(FILE *out, const struct canary *c) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT, other = TP_LOCK_REVISION_INIT;
    int worst = TP_LOCK_MATCHES;
    for (int64_t i = 0; tp_lock_revision_at(c->lock, i, &one) == TP_OK; i++) {
        int state = TP_LOCK_MATCHES;
        if (!is_last(c, i, 1)) continue;
        for (int64_t k = 0; k <= i && tp_lock_revision_at(c->lock, k, &other) == TP_OK; k++) {
            if (strcmp(one.model, other.model) || !is_last(c, k, 0)) continue;
            int this = state_of(c, k, &other);
            if (this > state) state = this;
        }
        put_state(out, one.model, state);
        if (state > worst) worst = state;
    }
    return worst;
}

static int put_states(FILE *out, const struct canary *c) {
    int worst = TP_LOCK_MATCHES;
    put_head(out, "tileproof_lock_state", "1 for the state that the lock is in for a model, 0 for the others.");
    if (!c->lock) {
        put_state(out, "", TP_LOCK_UNREADABLE);
        return TP_LOCK_UNREADABLE;
    }
    if (!c->deployed_count) worst = put_locked(out, c);
    for (int i = 0; i < c->deployed_count; i++) {
        put_state(out, c->deployed[i].model->label, c->deployed[i].state);
        if (c->deployed[i].state > worst) worst = c->deployed[i].state;
    }
    return c->stale && worst == TP_LOCK_MATCHES ? TP_LOCK_STALE : worst;
}

static long long not_run(const struct canary *c) {
    long long left = c->cells;
    for (int i = TP_CELL_QUALIFIED; i <= TP_CELL_NUMERICS_CHANGED; i++) left -= c->counts[i];
    return left;
}

static void put_all(FILE *out, const struct canary *c, long long passed, int code) {
    put_plain(out, success, "When the canary last passed, in Unix time; 0: it never did.", passed);
    put_plain(out, "tileproof_canary_last_run_timestamp_seconds", "When the canary last ran, in Unix time.",
              (long long)time(NULL));
    put_plain(out, "tileproof_canary_exit_code", "How it ended: the exit code of tileproof canary.", code);
    put_head(out, "tileproof_canary_cells", "Cells by verdict; NOT_RUN: nothing had changed, or the budget left them out.");
    for (int i = 0; i <= TP_CELL_NUMERICS_CHANGED; i++)
        fprintf(out, "tileproof_canary_cells{status=\"%s\"} %lld\n", tp_cell_status_name((tp_cell_status)i),
                i == TP_CELL_NOT_RUN ? not_run(c) : (long long)c->counts[i]);
    int worst = put_states(out, c);
    put_plain(out, "tileproof_lock_loaded", "1 when a lock was loaded.", c->lock != NULL);
    put_plain(out, "tileproof_lock_stale", "1 when the lock does not vouch for this host, library and every model.",
              worst != TP_LOCK_MATCHES);
}

int canary_metrics_check(const struct options *options) {
    struct named_file written = {"--metrics", options->metrics_file}, lock = {"the lock", options->files[0]};
    int code = file_clash(&written, &lock);
    for (int i = 1; i < options->file_count && !code; i++) {
        struct named_file model = {"the config", options->files[i]};
        code = file_clash(&written, &model);
    }
    struct named_file model = {"the config", options->model};
    return code ? code : file_clash(&written, &model);
}

int canary_metrics_write(const struct canary *c, const char *path, int code) {
    struct atomic_file file;
    long long passed = code == EXIT_FINE ? (long long)time(NULL) : last_success(path);
    int failed = file_open(&file, path);
    if (failed) return failed;
    put_all(file.stream, c, passed, code);
    failed = file_close(&file, 1);
    return failed;
}
