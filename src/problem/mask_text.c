/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks in the text form. Words are those of the table of kinds. They compose by one formula, which section 3 of tileproof.h
 * has; the table gives each word its place in it. Any other tree is written in postfix order: mask=causal,first:4,or.
 */
#include "problem/mask_text.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "problem/limits.h"
#include "problem/number_text.h"

/* A word of the table of kinds; by its number, which kinds without a second word leave out. */
typedef struct word {
    const tp_mask_info *info; /* NULL: behind the last */
    const char *name;         /* NULL: no such word */
    tp__place place;
} word;

static word word_at(int index) {
    const tp__mask_kind *kind = tp__mask_kind_at(index / TP__KIND_WORDS);
    if (kind == NULL) return (word){NULL, NULL, TP__INNER};
    int which = index % TP__KIND_WORDS;
    return (word){&kind->info, kind->word[which].name, kind->word[which].place};
}

/* The number of a kind's only word, or of this one of several; -1: no kind. */
static int word_of(int32_t kind, int which) {
    const tp__mask_kind *at;
    for (int i = 0; (at = tp__mask_kind_at(i)) != NULL; i++)
        if (at->info.kind == kind)
            return i * TP__KIND_WORDS + (which < TP__KIND_WORDS && at->word[which].name != NULL ? which : 0);
    return -1;
}

/* Does the value come with the tensors where the word has none? */
static int may_be_left_out(const tp_mask_info *info) { return info->reads == TP_MASK_READS_LEFT_OUT; }

static int equal_nodes(const tp_mask_node *one, const tp_mask_node *other) {
    return one->kind == other->kind && one->a == other->a && one->b == other->b;
}

/* One place of the formula: all its words, joined one after another. */
static int join_place(tp_problem *problem, const tp__mask_list *list, tp__place at, int32_t join) {
    for (int i = 0; i < list->count; i++)
        if (word_at(list->word[i]).place == at &&
            tp_problem_mask(problem, join, list->node[i].kind, list->node[i].a, list->node[i].b) != TP_OK)
            return 0;
    return 1;
}

int tp__mask_compose(tp_problem *problem, const tp__mask_list *list) {
    int windows = 0, first = 0;
    problem->mask_nodes = 0;
    for (int i = 0; i < list->count; i++) {
        windows += word_at(list->word[i]).place == TP__WINDOWS;
        first += word_at(list->word[i]).place == TP__FIRST;
    }
    if (windows > 0 && first > 0) {
        if (!join_place(problem, list, TP__WINDOWS, TP_MASK_AND) ||
            !join_place(problem, list, TP__FIRST, TP_MASK_OR) ||
            !join_place(problem, list, TP__INNER, TP_MASK_AND))
            return 0;
    } else { /* in the order given, whatever they are */
        for (int i = 0; i < list->count; i++)
            if (word_at(list->word[i]).place <= TP__INNER &&
                tp_problem_mask(problem, TP_MASK_AND, list->node[i].kind, list->node[i].a,
                                list->node[i].b) != TP_OK)
                return 0;
    }
    return join_place(problem, list, TP__ALSO, TP_MASK_OR) && join_place(problem, list, TP__OUTER, TP_MASK_AND);
}

/* The words of a tree's leaves, a repeated one once; of kinds with several words the one told. */
static void collect(const tp_problem *problem, int which, tp__mask_list *list) {
    list->count = 0;
    for (int i = 0; i < problem->mask_nodes && i < TP_MAX_MASK_NODES; i++) {
        const tp_mask_node *node = &problem->mask[i];
        int repeated = 0, found = word_of(node->kind, which);
        for (int k = 0; k < list->count; k++) repeated |= equal_nodes(node, &list->node[k]);
        if (repeated || found < 0) continue;
        if (list->count == TP__MASK_PARTS) return;
        list->word[list->count] = found;
        list->node[list->count++] = *node;
    }
}

/* Without ORs, only what is in the tree counts, not how often or in which order. */
static int only_ands(const tp_problem *problem) {
    for (int i = 0; i < problem->mask_nodes; i++)
        if (problem->mask[i].kind == TP_MASK_OR) return 0;
    return 1;
}

static int same_tree(const tp_problem *a, const tp_problem *b) {
    if (only_ands(a) && only_ands(b)) return 1; /* the words came from the tree */
    if (a->mask_nodes != b->mask_nodes) return 0;
    for (int i = 0; i < a->mask_nodes; i++)
        if (!equal_nodes(&a->mask[i], &b->mask[i])) return 0;
    return 1;
}

static void put_values(char *text, size_t size, const tp_mask_node *node, const tp_mask_info *info, char start,
                       char between) {
    if (may_be_left_out(info) && node->a < 0) return;
    if (info->values == 1) snprintf(text, size, "%c%lld", start, (long long)node->a);
    if (info->values == 2)
        snprintf(text, size, "%c%lld%c%lld", start, (long long)node->a, between, (long long)node->b);
}

static size_t put_postfix(const tp_problem *problem, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, " mask=");
    for (int i = 0; i < problem->mask_nodes && i < TP_MAX_MASK_NODES && used < size; i++) {
        const tp_mask_node *node = &problem->mask[i];
        const char *name = node->kind == TP_MASK_AND ? "and" : node->kind == TP_MASK_OR ? "or" : "?";
        char values[64] = "";
        int found = word_of(node->kind, 0);
        if (found >= 0) {
            name = word_at(found).name;
            put_values(values, sizeof values, node, word_at(found).info, ':', ':');
        }
        used += (size_t)snprintf(text + used, size - used, "%s%s%s", i > 0 ? "," : "", name, values);
    }
    return used < size ? used : size - 1;
}

size_t tp__mask_print(const tp_problem *problem, char *text, size_t size) {
    tp_problem composed;
    tp__mask_list list;
    int found = 0;
    for (int which = 0; which < TP__KIND_WORDS && !found; which++) {
        tp_problem_init(&composed);
        collect(problem, which, &list);
        found = tp__mask_compose(&composed, &list) && same_tree(problem, &composed);
    }
    if (!found) return put_postfix(problem, text, size);
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < list.count && used < size; i++) {
        char values[64] = "";
        word one = word_at(list.word[i]);
        put_values(values, sizeof values, &list.node[i], one.info, '=', ',');
        used += (size_t)snprintf(text + used, size - used, " %s%s", one.name, values);
    }
    return used < size ? used : size - 1;
}

/* Reads a name and its numbers, which start and are apart by these characters. */
static int read_word(const char **at, const char *end, char start, char between, int *number,
                     tp_mask_node *node) {
    size_t longest = 0;
    word one;
    for (int w = 0; (one = word_at(w)).info != NULL; w++) {
        size_t size = one.name != NULL ? strlen(one.name) : 0;
        if (size <= longest || size > (size_t)(end - *at) || memcmp(*at, one.name, size)) continue;
        *number = w;
        longest = size;
    }
    if (longest == 0) return 0;
    *at += longest;
    one = word_at(*number);
    *node = (tp_mask_node){.kind = one.info->kind};
    if (may_be_left_out(one.info) && (*at == end || **at != start)) {
        node->a = -1;
        return 1;
    }
    int64_t *to[2] = {&node->a, &node->b};
    for (int i = 0; i < one.info->values; i++) {
        if (*at == end || **at != (i == 0 ? start : between)) return 0;
        ++*at;
        if (!tp__read_integer(at, end, to[i])) return 0;
    }
    return !may_be_left_out(one.info) || node->a >= 0; /* what is left out has no number */
}

int tp__mask_word_at(int index, const char **name, int *values) {
    word one = word_at(index);
    if (one.info == NULL) return 0;
    *name = one.name;
    *values = one.info->values;
    return 1;
}

int tp__mask_word_starts(const char *text, const char *end) {
    size_t size = (size_t)(end - text);
    word one;
    for (int w = 0; (one = word_at(w)).info != NULL; w++) {
        size_t name = one.name != NULL ? strlen(one.name) : SIZE_MAX;
        if (size < name || memcmp(text, one.name, name) != 0) continue;
        if (size == name || (one.info->values > 0 && text[name] == '=')) return 1;
    }
    return 0;
}

static tp_status check_node(const tp_mask_node *node, tp_error *error) {
    tp_problem one;
    tp_problem_init(&one);
    one.mask[0] = *node;
    one.mask_nodes = 1;
    return tp__mask_check(&one, error);
}

/* What the word's values must be: names, least and greatest. */
static tp_status refuse_values(tp__words *w, const tp_mask_info *info) {
    if (info->values == 2)
        return TP__REFUSE_WORD(w, "it takes %s,%s: whole numbers in %lld..2^40 and %lld..2^40", info->value[0],
                               info->value[1], (long long)info->min[0], (long long)info->min[1]);
    return TP__REFUSE_WORD(w, "it takes one whole number in %lld..2^40",
                           (long long)(may_be_left_out(info) ? 0 : info->min[0]));
}

/* Windows add up, whatever their values; of any other kind there is one. */
static tp_status check_repeated(tp__words *w, int number, const tp_mask_node *node) {
    const tp__mask_list *list = &w->masks;
    int windows = word_at(number).place == TP__WINDOWS;
    for (int i = 0; i < list->count; i++) {
        if (list->node[i].kind != node->kind || (windows && !equal_nodes(&list->node[i], node))) continue;
        return windows ? TP__REFUSE_WORD(w, "this window is given twice")
                       : TP__REFUSE_WORD(w, "repeated; each word may be given once");
    }
    return TP_OK;
}

tp_status tp__take_mask(tp__words *w) {
    tp__mask_list *list = &w->masks;
    tp_mask_node node;
    tp_error why = TP_ERROR_INIT;
    int number = 0;
    w->at = w->word;
    if (!read_word(&w->at, w->end, '=', ',', &number, &node) || w->at != w->end)
        return refuse_values(w, word_at(number).info);
    if (check_node(&node, &why) != TP_OK) return TP__REFUSE_WORD(w, "%s", why.text);
    TP_TRY(check_repeated(w, number, &node));
    if (list->count == TP__MASK_PARTS)
        return TP__REFUSE_WORD(w, "one mask too many: a tree holds at most %d nodes", TP_MAX_MASK_NODES);
    list->word[list->count] = number;
    list->node[list->count++] = node;
    return TP_OK;
}

tp_status tp__take_mask_tree(tp__words *w) {
    tp_problem *problem = &w->problem;
    tp_error why = TP_ERROR_INIT;
    for (int n = 0;; n++) {
        tp_mask_node node = {0};
        int number;
        if (n == TP_MAX_MASK_NODES)
            return TP__REFUSE_WORD(w, "a tree holds at most %d nodes", TP_MAX_MASK_NODES);
        size_t left = (size_t)(w->end - w->at), size = strcspn(w->at, ", \t\n\r");
        if (left > 0 && size == 3 && memcmp(w->at, "and", 3) == 0)
            node.kind = TP_MASK_AND, w->at += 3;
        else if (left > 0 && size == 2 && memcmp(w->at, "or", 2) == 0)
            node.kind = TP_MASK_OR, w->at += 2;
        else if (!read_word(&w->at, w->end, ':', ':', &number, &node))
            return TP__REFUSE_WORD(w, "it takes mask kinds such as window:3:0 or prefix:4, and 'and' and "
                                      "'or' after the two they join, apart by commas");
        problem->mask[problem->mask_nodes++] = node;
        if (w->at == w->end) break;
        if (*w->at++ != ',') return TP__REFUSE_WORD(w, "kinds must be apart by commas");
    }
    if (tp__mask_check(problem, &why) != TP_OK) return TP__REFUSE_WORD(w, "%s", why.text);
    return TP_OK;
}
