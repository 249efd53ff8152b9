/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of decisions. Its key is the problem with lengths and batch rounded up, so that a loop whose
 * lengths grow meets the same plan again, and the choice. What is kept is the decision; the bounds of a plan, and
 * so its workspace, are those of the call at hand. The least recently used plan goes first.
 */
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "base/arena.h"
#include "base/error.h"
#include "masks/mask.h"
#include "problem/sequence.h"

#define NAMES_MAX 96
#define KV_LEN_MIN 131072 /* of keys: what is decided does not depend on their number */

typedef struct key {
    tp_problem problem;
    int32_t policy, device;
    /* policy locked only: which permits, and on which side of the borders of a class */
    uint32_t permits;
    int32_t decode_phase, few_rows;
    char disable[NAMES_MAX], kernel[NAMES_MAX], strategy[NAMES_MAX];
} key;

typedef struct entry {
    key key;
    uint64_t used; /* the cache's clock when it was last asked for */
    tp_plan plan;
} entry;

struct tp__cache {
    int max, count;
    uint64_t clock;
    entry *last;   /* the one found last: a loop asks for it again */
    entry **entry;
    tp_plan exact; /* of a problem that is not cached */
};

tp__cache *tp__cache_create(int max) {
    tp__cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL) return NULL;
    cache->max = max;
    cache->entry = calloc((size_t)max, sizeof *cache->entry);
    if (cache->entry != NULL) return cache;
    free(cache);
    return NULL;
}

void tp__cache_destroy(tp__cache *cache) {
    if (cache == NULL) return;
    for (int i = 0; i < cache->count; i++) {
        tp_decision_destroy(cache->entry[i]->plan.decision);
        free(cache->entry[i]);
    }
    tp__plan_release(&cache->exact);
    free(cache->entry);
    free(cache);
}

static int64_t up_to_power_of_two(int64_t x) {
    int64_t power = 1;
    while (power < x) power *= 2;
    return power;
}

/* 0 when the choice is not one to keep: names too long, or an empty kernel name, which is refused. */
static int make_key(const tp_problem *problem, const tp_choice *choice, tp_context *context, key *k) {
    const char *disable = choice != NULL && choice->disable != NULL ? choice->disable : "";
    const char *kernel = choice != NULL && choice->kernel != NULL ? choice->kernel : "";
    const char *strategy = choice != NULL && choice->strategy != NULL ? choice->strategy : "";
    if (strlen(disable) >= NAMES_MAX || strlen(kernel) >= NAMES_MAX || strlen(strategy) >= NAMES_MAX)
        return 0;
    if (choice != NULL && choice->kernel != NULL && kernel[0] == '\0') return 0;
    if (choice != NULL && choice->strategy != NULL && strategy[0] == '\0') return 0;
    memset(k, 0, sizeof *k);
    memcpy(&k->problem, problem, sizeof k->problem);
    memset(k->problem.mask + problem->mask_nodes, 0,
           sizeof k->problem.mask - (size_t)problem->mask_nodes * sizeof(tp_mask_node));
    if (!problem->scale_set) k->problem.scale = 0.0f;
    k->problem.batch = up_to_power_of_two(problem->batch);
    k->problem.q_len = up_to_power_of_two(problem->q_len);
    k->problem.kv_len = tp__max(KV_LEN_MIN, up_to_power_of_two(problem->kv_len));
    k->problem.cascade = problem->cascade > 0;
    k->policy = choice != NULL ? choice->policy : context->policy;
    k->device = choice != NULL ? choice->device : TP_CPU;
    if (k->policy == TP_LOCKED) {
        k->permits = atomic_load(&context->permits_generation);
        k->decode_phase = tp__phase(problem->q_len, problem->kv_len)[0] == 'd';
        k->few_rows = tp__bucket(problem, problem->q_len)[0] == 'f';
    }
    strcpy(k->disable, disable);
    strcpy(k->kernel, kernel);
    strcpy(k->strategy, strategy);
    return 1;
}

static int same(const entry *e, const key *k) { return memcmp(&e->key, k, sizeof *k) == 0; }

static entry *find(tp__cache *cache, const key *k) {
    if (cache->last != NULL && same(cache->last, k)) return cache->last;
    for (int i = 0; i < cache->count; i++)
        if (same(cache->entry[i], k)) return cache->entry[i];
    return NULL;
}

/* A place for one more: a new one while there is room, otherwise the least recently used. */
static entry *place(tp__cache *cache) {
    if (cache->count < cache->max) {
        entry *fresh = calloc(1, sizeof *fresh);
        if (fresh != NULL) cache->entry[cache->count++] = fresh;
        return fresh;
    }
    entry *oldest = cache->entry[0];
    for (int i = 1; i < cache->count; i++)
        if (cache->entry[i]->used < oldest->used) oldest = cache->entry[i];
    return oldest;
}

tp_status tp__cache_get(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                        const tp_plan **plan, int *planned, tp_error *error) {
    tp__cache *cache = context->cache;
    key k;
    *planned = 0;
    *plan = NULL;
    TP_TRY(tp_problem_check(problem, error));
    int keep = make_key(problem, choice, context, &k);
    entry *found = keep ? find(cache, &k) : NULL;
    if (found == NULL) {
        *planned = 1;
        /* whether math, a callback's answers or backward's rows fit into memory is decided by the lengths: anew each
           time; what a device decides by is its own matter */
        tp__plan_release(&cache->exact);
        tp_status made = tp__plan_make(context, problem, choice, &cache->exact, error);
        if (cache->exact.decision != NULL) *plan = &cache->exact;
        if (made != TP_OK) return made;
        if (!keep || cache->exact.device != NULL || !cache->exact.strategy->fused || tp__mask_has(problem, TP_MASK_CALLBACK) ||
            problem->op == TP_BACKWARD)
            return TP_OK;
        found = place(cache);
        TP_REQUIRE(found != NULL, error, TP_NO_MEMORY, "no memory for a plan of %zu bytes",
                   sizeof *found);
        tp_decision_destroy(found->plan.decision); /* of the plan that had the place */
        found->key = k;
        found->plan = cache->exact;
        cache->exact.decision = NULL;
    } else {
        atomic_fetch_add(&context->cache_hits, 1);
    }
    found->plan.problem = *problem;
    found->used = ++cache->clock;
    cache->last = found;
    *plan = &found->plan;
    return TP_OK;
}
