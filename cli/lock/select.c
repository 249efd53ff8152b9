/* SPDX-License-Identifier: Apache-2.0 */
#include "lock/lock.h"

#include <string.h>

static int begins(const char *text, const char *with, size_t length) {
    return !strncmp(text, with, length);
}

int revision_means(const tp_lock_revision *revision, struct wanted wanted) {
    const char *word = wanted.word ? wanted.word : "";
    if (wanted.cache && strcmp(revision->cache, wanted.cache)) return 0;
    size_t name = strcspn(word, "@/");
    const char *config = word[name] == '@' ? word + name + 1 : "", *slash = strchr(word + name, '/');
    const char *engine = slash ? slash + 1 : "";
    size_t config_length = strcspn(config, "/"), engine_length = strcspn(engine, ":");
    if (name && (strlen(revision->model) != name || !begins(revision->model, word, name))) return 0;
    if (!begins(revision->config_hash, config, config_length)) return 0;
    if (engine_length && (strlen(revision->engine) != engine_length || !begins(revision->engine, engine, engine_length)))
        return 0;
    const char *device = engine[engine_length] == ':' ? engine + engine_length + 1 : "";
    return begins(revision->device, device, strlen(device));
}

int64_t revision_find(const tp_lock *lock, struct wanted wanted, int64_t index) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    for (int64_t i = 0; tp_lock_revision_at(lock, i, &one) == TP_OK; i++)
        if (revision_means(&one, wanted) && !index--) return i;
    return -1;
}

/* The model, config and cache of this revision stand in an earlier one too, of another engine or host. */
static int named_before(const tp_lock *lock, int64_t index, const tp_lock_revision *one) {
    tp_lock_revision other = TP_LOCK_REVISION_INIT;
    for (int64_t i = 0; i < index && tp_lock_revision_at(lock, i, &other) == TP_OK; i++)
        if (!strcmp(one->model, other.model) && !strcmp(one->config_hash, other.config_hash) && !strcmp(one->cache, other.cache))
            return 1;
    return 0;
}

int complain_revision(const char *path, const tp_lock *lock, struct wanted wanted) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    char names[600] = "";
    for (int64_t i = 0; tp_lock_revision_at(lock, i, &one) == TP_OK; i++) {
        size_t used = strlen(names);
        char name[240];
        int plain = !strcmp(one.cache, "plain");
        snprintf(name, sizeof name, "%.100s@%.12s%s%.64s", one.model, one.config_hash, plain ? "" : " with cache ",
                 plain ? "" : one.cache);
        if (used + strlen(name) + 8 < sizeof names && !named_before(lock, i, &one))
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", name);
    }
    complain("%s has no revision '%s'%s%s: it must be NAME, NAME@CONFIG or @CONFIG, with /ENGINE behind it or not; it has %s",
             path, wanted.word ? wanted.word : "", wanted.cache ? " with cache " : "", wanted.cache ? wanted.cache : "",
             *names ? names : "none");
    return EXIT_USAGE;
}

int revision_same_engine(const tp_lock_revision *a, const tp_lock_revision *b) {
    return !strcmp(a->engine, b->engine) && !strcmp(a->mode, b->mode) && !strcmp(a->device, b->device) &&
           !strcmp(a->isa, b->isa) && !strcmp(a->cache, b->cache);
}

int64_t revision_next(const tp_lock *lock, int64_t self) {
    tp_lock_revision mine = TP_LOCK_REVISION_INIT, one = TP_LOCK_REVISION_INIT;
    tp_lock_revision_at(lock, self, &mine);
    for (int64_t i = self + 1; tp_lock_revision_at(lock, i, &one) == TP_OK; i++)
        if (!strcmp(one.model, mine.model) && revision_same_engine(&one, &mine)) return i;
    return -1;
}
