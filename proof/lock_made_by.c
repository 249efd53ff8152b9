/* SPDX-License-Identifier: Apache-2.0 */
/* Who made a revision: an identity as the maps that a lock has, and what differs between the two. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "lock.h"
#include "control.h"

enum { MAX_NAME = 63, MAX_VALUE = 255 };

static const char *or_default(const char *text, const char *usual) {
    return text && *text ? text : usual;
}

tp_lock_revision tp__identity_engine(const tp_identity *identity) {
    tp_lock_revision head = TP_LOCK_REVISION_INIT;
    head.engine = or_default(identity->engine, "tileproof");
    head.mode = or_default(identity->mode, "");
    head.device = or_default(identity->device, "cpu");
    head.isa = or_default(identity->isa, "");
    head.cache = or_default(identity->cache, "plain");
    return head;
}

/* What this library says of itself and of its host, by the words that locks have. */
typedef struct own {
    const char *word;
    size_t offset, max;
} own;
static const own own_versions[] = {{"version", offsetof(tp_identity, version), 63},
                                   {"build", offsetof(tp_identity, build), 64},
                                   {"compiler", offsetof(tp_identity, compiler), 1023},
                                   {"declared", offsetof(tp_identity, declared), 255},
                                   {NULL, offsetof(tp_identity, versions), 0}};
static const own own_hosts[] = {{"cpu", offsetof(tp_identity, cpu), 255},
                                {"os", offsetof(tp_identity, os), 255},
                                {"libc", offsetof(tp_identity, libc), 255},
                                {NULL, offsetof(tp_identity, host), 0}}; /* the last one has lines of name=value */

static const char *text_at(const tp_identity *identity, size_t offset) {
    const char *text = *(const char *const *)(const void *)((const char *)identity + offset);
    return text ? text : "";
}

/* One name and its value. */
typedef struct pair {
    char name[MAX_NAME + 1], value[1024];
} pair;

/* Moves on to the next line. Nonzero: this one breaks the rules. */
static int next_line(const char **at, pair *line) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-";
    size_t name = strspn(*at, letters), end = strcspn(*at, "\n");
    if (!name || name > MAX_NAME || (*at)[name] != '=' || end <= name + 1 || end - name - 1 > MAX_VALUE) return 1;
    memcpy(line->name, *at, name);
    line->name[name] = 0;
    memcpy(line->value, *at + name + 1, end - name - 1);
    line->value[end - name - 1] = 0;
    *at += end + ((*at)[end] == '\n');
    return 0;
}

/* The index'th pair of an identity's map. 0 behind the last one. */
static int pair_at(const tp_identity *identity, const own *map, int index, pair *found) {
    for (; map->word; map++) {
        const char *text = text_at(identity, map->offset);
        if (!*text || index--) continue;
        snprintf(found->name, sizeof found->name, "%s", map->word);
        snprintf(found->value, sizeof found->value, "%s", text);
        return 1;
    }
    if (map->offset == offsetof(tp_identity, versions) && identity->parser && !index--) {
        snprintf(found->name, sizeof found->name, "parser");
        snprintf(found->value, sizeof found->value, "%d", (int)identity->parser);
        return 1;
    }
    const char *lines = text_at(identity, map->offset);
    while (*lines && !next_line(&lines, found))
        if (!index--) return 1;
    return 0;
}

static json_t *map_of(const tp_identity *identity, const own *fields) {
    json_t *map = json_object();
    pair one;
    int failed = !map;
    for (int i = 0; !failed && pair_at(identity, fields, i, &one); i++)
        failed = json_object_set_new(map, one.name, json_string(one.value));
    if (!failed) return map;
    json_decref(map);
    return NULL;
}

json_t *tp__identity_versions(const tp_identity *identity) {
    return map_of(identity, own_versions);
}
json_t *tp__identity_host(const tp_identity *identity) {
    return map_of(identity, own_hosts);
}

static tp_status check_text(const char *word, const char *text, size_t max, tp_error *error) {
    if (strlen(text) > max) return tp__proof_fail(error, TP_INVALID, "%s has %zu bytes: at most %zu", word, strlen(text), max);
    return tp__is_utf8(text, strlen(text)) ? TP_OK : tp__proof_fail(error, TP_INVALID, "%s is not UTF-8", word);
}

static tp_status check_lines(const char *word, const char *text, tp_error *error) {
    pair line;
    TP_TRY(check_text(word, text, 1 << 14, error));
    while (*text)
        if (next_line(&text, &line))
            return tp__proof_fail(error, TP_INVALID,
                                  "%s has the line '%.*s': it must be name=value, the name of 1..%d letters, digits and . _ + -, "
                                  "the value of 1..%d bytes",
                                  word, (int)(strcspn(text, "\n") < 80 ? strcspn(text, "\n") : 80), text, MAX_NAME, MAX_VALUE);
    return TP_OK;
}

static tp_status check_map(const tp_identity *identity, const own *map, const char *lines, tp_error *error) {
    for (; map->word; map++) TP_TRY(check_text(map->word, text_at(identity, map->offset), map->max, error));
    return check_lines(lines, text_at(identity, map->offset), error);
}

tp_status tp__identity_check(const tp_identity *identity, tp_error *error) {
    tp_lock_revision head = tp__identity_engine(identity);
    TP_TRY(check_map(identity, own_versions, "versions", error));
    TP_TRY(check_map(identity, own_hosts, "host", error));
    if (!strcmp(head.cache, "any"))
        return tp__proof_fail(error, TP_INVALID, "cache is any: a revision has one, by its name: plain, i8/token");
    if (!strcmp(head.engine, "tileproof") && !*head.isa)
        return tp__proof_fail(error, TP_INVALID, "isa is empty: cells of this library need an ISA of 1..63 bytes");
    return tp__record_check(tp__engine_fields, &head, 0, error);
}

/* ---- what differs ---- */

static void add_difference(char *text, size_t size, const char *what, const char *locked, const char *here) {
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s: lock has %.150s, here %.150s", used ? "; " : "", what, *locked ? locked : "none",
             *here ? here : "none");
}

static void add_named(char *text, size_t size, const char *what, const char *name, const char *locked, const char *here) {
    char both[160];
    snprintf(both, sizeof both, "%.60s %.60s", what, name);
    add_difference(text, size, both, locked, here);
}

/* How many names of a map have other values here, each named in the text. */
static int differences(json_t *locked, const tp_identity *now, const own *fields, const char *what, char *text, size_t size) {
    const char *key;
    json_t *value;
    pair here;
    int count = 0;
    json_object_foreach(locked, key, value) {
        int i = 0;
        while (pair_at(now, fields, i, &here) && strcmp(here.name, key)) i++;
        const char *mine = pair_at(now, fields, i, &here) ? here.value : "";
        if (!strcmp(mine, json_string_value(value))) continue;
        add_named(text, size, what, key, json_string_value(value), mine);
        count++;
    }
    for (int i = 0; pair_at(now, fields, i, &here); i++) {
        if (json_object_get(locked, here.name)) continue;
        add_named(text, size, what, here.name, "", here.value);
        count++;
    }
    return count;
}

/* One of the revision's hosts is this one; otherwise the text has what the last of them has. */
static int host_differs(const json_t *entry, const tp_identity *now, char *text, size_t size) {
    char unused[1024];
    json_t *one, *last = NULL;
    size_t i;
    json_array_foreach(json_object_get(entry, "hosts"), i, one) {
        unused[0] = 0;
        last = one;
        if (!differences(one, now, own_hosts, "host", unused, sizeof unused)) return 0;
    }
    return differences(last, now, own_hosts, "host", text, size);
}

/* engine: what the identity is asked as. TP_OK, or TP_UNSUPPORTED with the text. */
static tp_status compare(const tp_lock *lock, size_t revision, const tp_identity *now, const tp_lock_revision *engine, char *text,
                         size_t size) {
    const json_t *entry = json_array_get(lock->revisions, revision);
    tp_lock_revision head = tp__lock_head(entry);
    const char *const fields[][3] = {{"engine", head.engine, engine->engine},
                                     {"mode", head.mode, engine->mode},
                                     {"device", head.device, engine->device},
                                     {"ISA", head.isa, engine->isa},
                                     {"cache", head.cache, engine->cache}};
    const char *what = strcmp(head.engine, "tileproof") ? head.engine : "library";
    int count = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (!strcmp(fields[i][1], fields[i][2]) || !strcmp(fields[i][2], "any")) continue;
        add_difference(text, size, fields[i][0], fields[i][1], fields[i][2]);
        count++;
    }
    count += differences(json_object_get(entry, "versions"), now, own_versions, what, text, size);
    count += host_differs(entry, now, text, size);
    return count ? TP_UNSUPPORTED : TP_OK;
}

/* Whether the last name of a key is one that came after the first locks. */
static int is_later(const char *key, size_t length) {
    static const char *const first[] = {"avx2", "avx512", "none", ""};
    size_t name = 0;
    while (name < length && key[length - name - 1] != ',') name++;
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (strlen(first[i]) == name && !memcmp(key + length - name, first[i], name)) return 0;
    return 1;
}

static int has_isa(const tp_lock *lock, const tp_lock_revision *now, const char *isa) {
    tp_lock_revision wanted = *now;
    json_t *entry;
    size_t i;
    wanted.isa = isa;
    json_array_foreach(lock->revisions, i, entry) {
        tp_lock_revision head = tp__lock_head(entry);
        head.mode = wanted.mode, head.cache = wanted.cache;
        if (tp__lock_same_engine(&head, &wanted)) return 1;
    }
    return 0;
}

int tp__lock_isa(const tp_lock *lock, const tp_lock_revision *given, char key[64]) {
    tp_lock_revision now = *given;
    size_t length = strlen(now.isa);
    if (!*now.engine) now.engine = "tileproof";
    if (!*now.device) now.device = "cpu";
    if (length >= 64) return 1;
    memcpy(key, now.isa, length + 1);
    int found = has_isa(lock, &now, key);
    while (!found && is_later(key, length)) {
        while (length && key[length - 1] != ',') length--;
        if (length) length--;
        key[length] = 0;
        if (!length) length = strlen(strcpy(key, "none"));
        found = has_isa(lock, &now, key);
    }
    return !found;
}

/* "avx2", "avx2 on opencl:NAME", "torch on cpu". */
static void say_engine(const tp_lock_revision *head, char text[128]) {
    int here = !strcmp(head->engine, "tileproof"), cpu = here && !strcmp(head->device, "cpu");
    snprintf(text, 128, "%.63s%s%.60s", here ? head->isa : head->engine, cpu ? "" : " on ", cpu ? "" : head->device);
}

/* "avx2 and none": what the lock has instead. */
static void name_isas(const tp_lock *lock, char *names, size_t size) {
    json_t *entry;
    size_t i;
    json_array_foreach(lock->revisions, i, entry) {
        tp_lock_revision head = tp__lock_head(entry);
        char known[128];
        say_engine(&head, known);
        size_t used = strlen(names);
        if (!strstr(names, known)) snprintf(names + used, size - used, "%s%s", used ? " and " : "", known);
    }
}

tp_status tp_lock_revision_fresh(const tp_lock *lock, int64_t revision, const tp_identity *given, char *text, size_t size) {
    TP__IN_DEFAULT_FENV;
    tp_identity now;
    if (!lock || !text || !size || revision < 0 || revision >= (int64_t)json_array_size(lock->revisions)) return TP_INVALID;
    text[0] = 0;
    TP_TRY(tp__take(&tp__identity_shape, given, &now, NULL));
    tp_lock_revision engine = tp__identity_engine(&now);
    return compare(lock, (size_t)revision, &now, &engine, text, size);
}

/* Revisions of this engine, device and ISA; how many of them differ, and the first of those. */
struct found {
    int count, stale;
    tp_lock_revision first;
    char differs[1024];
};

static void look(const tp_lock *lock, const tp_identity *now, const char *isa, struct found *found) {
    json_t *entry;
    size_t i;
    json_array_foreach(lock->revisions, i, entry) {
        tp_lock_revision head = tp__lock_head(entry), asked = tp__identity_engine(now), wanted;
        char differs[1024] = "";
        asked.mode = head.mode, asked.cache = head.cache; /* in any mode, with any cache */
        wanted = asked;
        wanted.isa = isa;
        if (!tp__lock_same_engine(&head, &wanted) || !strcmp(head.config_hash, TP_LOCK_WATCHED)) continue;
        found->count++;
        if (compare(lock, i, now, &asked, differs, sizeof differs) == TP_OK || found->stale++) continue;
        found->first = head;
        memcpy(found->differs, differs, sizeof differs);
    }
}

tp_status tp_lock_fresh(const tp_lock *lock, const tp_identity *given, char *text, size_t size) {
    TP__IN_DEFAULT_FENV;
    tp_identity now;
    struct found found = {.count = 0};
    char isa[64], names[256] = "";
    if (!lock || !text || !size) return TP_INVALID;
    text[0] = 0;
    TP_TRY(tp__take(&tp__identity_shape, given, &now, NULL));
    tp_lock_revision engine = tp__identity_engine(&now);
    if (!tp__lock_isa(lock, &engine, isa)) look(lock, &now, isa, &found);
    if (!found.count) {
        char wanted[128];
        name_isas(lock, names, sizeof names);
        say_engine(&engine, wanted);
        add_difference(text, size, "ISA", names, wanted);
    } else if (found.stale == found.count) {
        snprintf(text, size, "%s", found.differs);
    } else if (found.stale) { /* of others it is not so */
        snprintf(text, size, "%.100s %.12s: %s", found.first.model, found.first.config_hash, found.differs);
    }
    return found.count && !found.stale ? TP_OK : TP_UNSUPPORTED;
}
