/* SPDX-License-Identifier: Apache-2.0 */
/* Two revisions, of one lock or of two, compared: what was asked, who served it, with what figures. */
#include "lock_diff.h"

#include <stdio.h>
#include <string.h>

#include "control.h"

void tp__change(tp__changes *c, const char *what, const char *from, const char *to) {
    json_t *change, *other;
    size_t i;
    if (c->failed || !strcmp(from, to)) return;
    change = json_pack("{s:s, s:s, s:s, s:s, s:s}", "where", c->where, "phase", c->phase, "what", what, "from", from, "to", to);
    json_array_foreach(c->list, i, other) if (change && json_equal(change, other)) {
        json_decref(change);
        return;
    }
    c->failed = !change || json_array_append_new(c->list, change);
}

static void change_number(tp__changes *c, const char *what, const char *format, double from, double to) {
    char a[32], b[32];
    snprintf(a, sizeof a, format, from);
    snprintf(b, sizeof b, format, to);
    tp__change(c, what, a, b);
}

/* ---- cells of a group, by phase ---- */

static const char *phase_of(const json_t *cell) {
    return tp__json_text(cell, "phase");
}

/* The first cell of the phase, or the one with this purpose. */
static json_t *find_cell(const json_t *group, const char *phase, const char *purpose) {
    json_t *cell;
    size_t i;
    json_array_foreach(json_object_get(group, "cells"), i, cell) {
        if (strcmp(phase_of(cell), phase)) continue;
        if (!purpose || !strcmp(tp__json_text(cell, "purpose"), purpose)) return cell;
    }
    return NULL;
}

static int rank_of(const json_t *cell) {
    int32_t status = TP_CELL_NOT_RUN;
    tp_cell_status_parse(tp__json_text(cell, "status"), &status);
    return tp_cell_status_rank((tp_cell_status)status);
}

static void add(char *text, size_t size, const char *format, const char *a, const char *b) {
    size_t used = strlen(text);
    snprintf(text + used, size - used, format, a, b);
}

/* "avx2", "avx2+math (fallback)", "refused: why", "NUMERIC_FAIL: why", "none". */
static void say_served(const json_t *group, const char *phase, char *text, size_t size) {
    json_t *cell, *worst = NULL;
    size_t i;
    text[0] = 0;
    json_array_foreach(json_object_get(group, "cells"), i, cell) {
        const char *kernel = tp__json_text(cell, "kernel");
        if (strcmp(phase_of(cell), phase)) continue;
        if (!worst || rank_of(cell) > rank_of(worst)) worst = cell;
        if (!strstr(text, kernel)) add(text, size, "%s%s", *text ? "+" : "", kernel);
    }
    const char *status = tp__json_text(worst, "status");
    if (!worst)
        snprintf(text, size, "none");
    else if (rank_of(worst) > 1)
        snprintf(text, size, "%s: %s", strcmp(status, "UNSUPPORTED") ? status : "refused", tp__json_text(worst, "reason"));
    else if (!*text)
        snprintf(text, size, "%s", *tp__json_text(worst, "observed") ? tp__json_text(worst, "observed") : status);
    else if (rank_of(worst))
        add(text, size, "%s%s", " (fallback)", "");
}

/* "q253 k253": what a problem has of lengths, so that figures of other lengths are not taken for a change. */
static void say_lengths(const char *problem, char *text, size_t size) {
    char copy[512], *state;
    text[0] = 0;
    snprintf(copy, sizeof copy, "%s", problem);
    for (char *word = strtok_r(copy, " ", &state); word; word = strtok_r(NULL, " ", &state))
        if ((strchr("bqk", word[0]) && word[1] >= '0' && word[1] <= '9') || !strncmp(word, "seqs=", 5))
            add(text, size, "%s%s", *text ? " " : "", word);
}

static void compare_figures(tp__changes *c, const json_t *a, const json_t *b) {
    static const char *const whole[] = {"bytes", "scratch", "temporary"};
    static const char *const texts[] = {"contained", "deterministic", "empty_rows", "doubt", "observed"};
    char tiles[2][80], lengths[2][256];
    const json_t *const both[] = {a, b};
    say_lengths(tp__json_text(a, "problem"), lengths[0], sizeof lengths[0]);
    say_lengths(tp__json_text(b, "problem"), lengths[1], sizeof lengths[1]);
    tp__change(c, "lengths", lengths[0], lengths[1]);
    change_number(c, "error", "%.3g", json_number_value(json_object_get(a, "error")),
                  json_number_value(json_object_get(b, "error")));
    change_number(c, "loss", "%.3g", json_number_value(json_object_get(a, "loss")),
                  json_number_value(json_object_get(b, "loss")));
    for (int i = 0; i < 2; i++)
        snprintf(tiles[i], sizeof tiles[i], "%lld full %lld partial %lld skipped",
                 (long long)json_integer_value(json_object_get(both[i], "tiles_full")),
                 (long long)json_integer_value(json_object_get(both[i], "tiles_partial")),
                 (long long)json_integer_value(json_object_get(both[i], "tiles_skipped")));
    tp__change(c, "tiles", tiles[0], tiles[1]);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        change_number(c, whole[i], "%.0f", (double)json_integer_value(json_object_get(a, whole[i])),
                      (double)json_integer_value(json_object_get(b, whole[i])));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *from = tp__json_text(a, texts[i]), *to = tp__json_text(b, texts[i]);
        tp__change(c, texts[i], *from ? from : "none", *to ? to : "none");
    }
    tp__change(c, "numerics", tp__json_text(a, "numerics_id"), tp__json_text(b, "numerics_id"));
    if (!strcmp(tp__json_text(a, "problem"), tp__json_text(b, "problem")))
        tp__change(c, "bits", tp__json_text(a, "output"), tp__json_text(b, "output"));
}

/* The cell of the same purpose on both sides, or the first of each. */
static void find_pair(const json_t *a, const json_t *b, const char *phase, json_t **left, json_t **right) {
    *left = find_cell(a, phase, NULL);
    *right = find_cell(b, phase, *left ? tp__json_text(*left, "purpose") : NULL);
    if (!*right) *right = find_cell(b, phase, NULL);
}

static void compare_phases(tp__changes *c, const json_t *a, const json_t *b) {
    json_t *left, *right;
    for (uint32_t bit = 1; bit & TP_QUALIFY_ALL; bit <<= 1) { /* first what is asked */
        c->phase = "";
        find_pair(a, b, tp_qualify_phase_name(bit), &left, &right);
        if (left && right) tp__change_words(c, tp__json_text(left, "problem"), tp__json_text(right, "problem"));
    }
    for (uint32_t bit = 1; bit & TP_QUALIFY_ALL; bit <<= 1) {
        char served[2][700];
        c->phase = tp_qualify_phase_name(bit);
        find_pair(a, b, c->phase, &left, &right);
        if (!left && !right) continue;
        say_served(a, c->phase, served[0], sizeof served[0]);
        say_served(b, c->phase, served[1], sizeof served[1]);
        tp__change(c, "kernel", served[0], served[1]);
        if (left && right && rank_of(left) <= 1 && rank_of(right) <= 1) compare_figures(c, left, right);
    }
    c->phase = "";
}

/* ---- groups ---- */

static void set_where(tp__changes *c, const json_t *group) {
    snprintf(c->where, sizeof c->where, "%.15s layers %.60s", tp__json_text(group, "part"), tp__json_text(group, "layers"));
}

static json_t *same_group(json_t *groups, const json_t *wanted) {
    json_t *group;
    size_t i;
    json_array_foreach(groups, i,
                       group) if (!strcmp(tp__json_text(group, "part"), tp__json_text(wanted, "part")) &&
                                  !strcmp(tp__json_text(group, "layers"), tp__json_text(wanted, "layers"))) return group;
    return NULL;
}

/* The n'th group of a part that the other side has not under the same layers. */
static json_t *left_over(json_t *groups, json_t *others, const char *part, int n) {
    json_t *group;
    size_t i;
    json_array_foreach(groups, i,
                       group) if (!strcmp(tp__json_text(group, "part"), part) && !same_group(others, group) && !n--) return group;
    return NULL;
}

/* Its place among those, or -1: the other side has it. */
static int rank_in(json_t *groups, json_t *others, const json_t *wanted) {
    json_t *group;
    size_t i;
    int rank = 0;
    if (same_group(others, wanted)) return -1;
    json_array_foreach(groups, i, group) {
        if (group == wanted) break;
        rank += !strcmp(tp__json_text(group, "part"), tp__json_text(wanted, "part")) && !same_group(others, group);
    }
    return rank;
}

static void compare_groups(tp__changes *c, json_t *a, json_t *b) {
    json_t *group, *other;
    size_t i;
    json_array_foreach(a, i, group) {
        int rank = rank_in(a, b, group);
        set_where(c, group);
        other = rank < 0 ? same_group(b, group) : left_over(b, a, tp__json_text(group, "part"), rank);
        if (rank >= 0 && other) tp__change(c, "layers", tp__json_text(group, "layers"), tp__json_text(other, "layers"));
        if (other)
            compare_phases(c, group, other);
        else
            tp__change(c, "group", "there", "gone");
    }
    json_array_foreach(b, i, group) {
        int rank = rank_in(b, a, group);
        if (rank < 0 || left_over(a, b, tp__json_text(group, "part"), rank)) continue;
        set_where(c, group);
        tp__change(c, "group", "none", "new");
        json_t *empty = json_pack("{s:[]}", "cells");
        c->failed |= !empty;
        compare_phases(c, empty, group);
        json_decref(empty);
    }
}

/* ---- the whole ---- */

static void compare_maps(tp__changes *c, const char *what, json_t *a, json_t *b) {
    const char *key;
    json_t *value;
    char name[140];
    json_object_foreach(a, key, value) {
        const char *to = tp__json_text(b, key);
        snprintf(name, sizeof name, "%.60s%.60s", what, key);
        tp__change(c, name, json_string_value(value), *to ? to : "none");
    }
    json_object_foreach(b, key, value) {
        snprintf(name, sizeof name, "%.60s%.60s", what, key);
        if (!json_object_get(a, key)) tp__change(c, name, "none", json_string_value(value));
    }
}

static json_t *compare(const json_t *a, const json_t *b) {
    tp__changes c = {.list = json_array(), .phase = ""};
    c.failed = !c.list;
    tp_lock_revision from = tp__lock_head(a), to = tp__lock_head(b);
    tp__change(&c, "model", from.model, to.model);
    tp__change(&c, "config", from.config_hash, to.config_hash);
    compare_maps(&c, "engine ", json_object_get(a, "engine"), json_object_get(b, "engine"));
    compare_maps(&c, "", json_object_get(a, "versions"), json_object_get(b, "versions"));
    json_t *host_a = json_array_get(json_object_get(a, "hosts"), 0), *host_b = json_array_get(json_object_get(b, "hosts"), 0);
    if (!json_equal(json_object_get(a, "hosts"), json_object_get(b, "hosts"))) compare_maps(&c, "host ", host_a, host_b);
    compare_groups(&c, json_object_get(a, "groups"), json_object_get(b, "groups"));
    if (!c.failed) return c.list;
    json_decref(c.list);
    return NULL;
}

static void put_head(tp__page *page, const json_t *entry) {
    tp_lock_revision head = tp__lock_head(entry);
    const char *const parts[] = {" (",
                                 head.date,
                                 *head.date ? ", " : "",
                                 head.engine,
                                 *head.mode ? " " : "",
                                 head.mode,
                                 " on ",
                                 head.device,
                                 *head.isa ? " " : "",
                                 head.isa,
                                 strcmp(head.cache, "plain") ? ", cache " : "",
                                 strcmp(head.cache, "plain") ? head.cache : "",
                                 ")"};
    tp__page name = {0};
    tp__lock_name(&name, entry);
    tp__page_put(page, tp__page_text(&name));
    page->failed |= name.failed;
    tp__page_close(&name);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) tp__page_put(page, parts[i]);
}

/* Of a hash, its beginning. */
static void put_value(tp__page *page, const char *before, const char *value) {
    char begin[16] = "";
    int hash = strlen(value) == 64 && strspn(value, "0123456789abcdef") == 64;
    if (hash) snprintf(begin, sizeof begin, "%.12s", value);
    tp__page_put(page, before);
    tp__page_put(page, hash ? begin : value);
}

/* A line for each place and phase: "text layers 0-31, decode: kernel avx2 -> refused: ...; bytes 1 -> 2". */
static void put_text(tp__page *page, const json_t *a, const json_t *b, json_t *changes) {
    const char *where = "", *phase = "";
    json_t *change;
    size_t i;
    int told = 0;
    put_head(page, a);
    tp__page_put(page, " -> ");
    put_head(page, b);
    tp__page_put(page, json_array_size(changes) ? "" : "\n  the same");
    json_array_foreach(changes, i, change) {
        const char *here = tp__json_text(change, "where"), *now = tp__json_text(change, "phase");
        if (!strcmp(tp__json_text(change, "what"), "config")) continue; /* its beginning stands above */
        if (!told++ || strcmp(here, where) || strcmp(now, phase)) {
            const char *const begin[] = {"\n  ", *here ? here : "all", *now ? ", " : "", now, ": "};
            for (size_t k = 0; k < sizeof begin / sizeof *begin; k++) tp__page_put(page, begin[k]);
        } else {
            tp__page_put(page, "; ");
        }
        tp__page_put(page, tp__json_text(change, "what"));
        put_value(page, " ", tp__json_text(change, "from"));
        put_value(page, " -> ", tp__json_text(change, "to"));
        where = here, phase = now;
    }
    tp__page_put(page, "\n");
}

static void put_json(tp__page *page, const json_t *a, const json_t *b, json_t *changes) {
    json_t *whole = json_pack("{s:{s:O, s:O}, s:{s:O, s:O}, s:O}", "from", "revision", json_object_get(a, "revision"), "engine",
                              json_object_get(a, "engine"), "to", "revision", json_object_get(b, "revision"), "engine",
                              json_object_get(b, "engine"), "changes", changes);
    tp__page_json(page, whole, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(whole);
}

tp_status tp_lock_diff(const tp_lock *from, int64_t from_revision, const tp_lock *to, int64_t to_revision, tp_format format,
                       tp_write write, void *cookie) {
    TP__IN_DEFAULT_FENV;
    if (!from || !to || !write || from_revision < 0 || to_revision < 0) return TP_INVALID;
    const json_t *a = json_array_get(from->revisions, (size_t)from_revision);
    const json_t *b = json_array_get(to->revisions, (size_t)to_revision);
    if (!a || !b) return TP_INVALID;
    tp__page page = {0};
    json_t *changes = compare(a, b);
    if (!changes) return TP_NO_MEMORY;
    (format == TP_JSON ? put_json : put_text)(&page, a, b, changes);
    json_decref(changes);
    return tp__page_give(&page, write, cookie);
}
