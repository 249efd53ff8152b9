/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks in the text form. Words say which kinds there are; how they compose is one formula, written as
 * models use them:
 *
 *     ((causal AND (window OR first) AND chunk) OR prefix OR spans)
 *     AND documents AND spans-and AND tree AND bits AND callback
 *
 * Any other tree is written in postfix order: mask=causal,first:4,or.
 */
#include "problem/mask_text.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "problem/limits.h"
#include "problem/number_text.h"

/* Where a word's kind stands in the formula; kinds of one place join in the order given. */
typedef enum place { WINDOWS, FIRST, INNER, ALSO, OUTER } place;

static const struct word {
    const char *name;
    int32_t kind;
    place place;
    int values; /* numbers it takes */
} words[] = {
    {"causal", TP_MASK_CAUSAL, INNER, 0},       {"window", TP_MASK_WINDOW, WINDOWS, 2},
    {"chunk", TP_MASK_CHUNK, INNER, 1},         {"prefix", TP_MASK_PREFIX, ALSO, 1},
    {"first", TP_MASK_FIRST, FIRST, 1},         {"documents", TP_MASK_DOCUMENTS, OUTER, 0},
    {"spans", TP_MASK_SPANS, ALSO, 0},          {"spans-and", TP_MASK_SPANS, OUTER, 0},
    {"tree", TP_MASK_TREE, OUTER, 0},           {"bits", TP_MASK_BITS, OUTER, 0},
    {"callback", TP_MASK_CALLBACK, OUTER, 0},
};
enum { WORDS = sizeof words / sizeof words[0] };

static int equal_nodes(const tp_mask_node *one, const tp_mask_node *other) {
    return one->kind == other->kind && one->a == other->a && one->b == other->b;
}

/* One place of the formula: all its words, joined one after another. */
static int join_place(tp_problem *problem, const tp__mask_list *list, place at, int32_t join) {
    for (int i = 0; i < list->count; i++)
        if (words[list->word[i]].place == at &&
            tp_problem_mask(problem, join, list->node[i].kind, list->node[i].a, list->node[i].b) != TP_OK)
            return 0;
    return 1;
}

int tp__mask_compose(tp_problem *problem, const tp__mask_list *list) {
    int windows = 0, first = 0;
    problem->mask_nodes = 0;
    for (int i = 0; i < list->count; i++) {
        windows += words[list->word[i]].place == WINDOWS;
        first += words[list->word[i]].place == FIRST;
    }
    if (windows > 0 && first > 0) {
        if (!join_place(problem, list, WINDOWS, TP_MASK_AND) ||
            !join_place(problem, list, FIRST, TP_MASK_OR) ||
            !join_place(problem, list, INNER, TP_MASK_AND))
            return 0;
    } else { /* in the order given, whatever they are */
        for (int i = 0; i < list->count; i++)
            if (words[list->word[i]].place <= INNER &&
                tp_problem_mask(problem, TP_MASK_AND, list->node[i].kind, list->node[i].a,
                                list->node[i].b) != TP_OK)
                return 0;
    }
    return join_place(problem, list, ALSO, TP_MASK_OR) && join_place(problem, list, OUTER, TP_MASK_AND);
}

/* The words of a tree's leaves, a repeated one once; spans as told. */
static void collect(const tp_problem *problem, int spans_and, tp__mask_list *list) {
    list->count = 0;
    for (int i = 0; i < problem->mask_nodes && i < TP_MAX_MASK_NODES; i++) {
        const tp_mask_node *node = &problem->mask[i];
        int repeated = 0;
        for (int k = 0; k < list->count; k++) repeated |= equal_nodes(node, &list->node[k]);
        for (int w = 0; w < WORDS && !repeated; w++) {
            if (words[w].kind != node->kind) continue;
            if (node->kind == TP_MASK_SPANS && (words[w].place == OUTER) != spans_and) continue;
            if (list->count == TP__MASK_PARTS) return;
            list->word[list->count] = w;
            list->node[list->count++] = *node;
        }
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

static void put_values(char *text, size_t size, const tp_mask_node *node, int values, char start,
                       char between) {
    if (values == 1 && node->a >= 0) snprintf(text, size, "%c%lld", start, (long long)node->a);
    if (values == 2)
        snprintf(text, size, "%c%lld%c%lld", start, (long long)node->a, between, (long long)node->b);
}

static size_t put_postfix(const tp_problem *problem, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, " mask=");
    for (int i = 0; i < problem->mask_nodes && i < TP_MAX_MASK_NODES && used < size; i++) {
        const tp_mask_node *node = &problem->mask[i];
        const char *name = node->kind == TP_MASK_AND ? "and" : node->kind == TP_MASK_OR ? "or" : "?";
        char values[64] = "";
        for (int w = WORDS; w-- > 0;) /* spans stands before spans-and */
            if (words[w].kind == node->kind) {
                name = words[w].name;
                put_values(values, sizeof values, node, words[w].values, ':', ':');
            }
        used += (size_t)snprintf(text + used, size - used, "%s%s%s", i > 0 ? "," : "", name, values);
    }
    return used < size ? used : size - 1;
}

size_t tp__mask_print(const tp_problem *problem, char *text, size_t size) {
    tp_problem composed;
    tp__mask_list list;
    int found = 0;
    for (int spans_and = 0; spans_and < 2 && !found; spans_and++) {
        tp_problem_init(&composed);
        collect(problem, spans_and, &list);
        found = tp__mask_compose(&composed, &list) && same_tree(problem, &composed);
    }
    if (!found) return put_postfix(problem, text, size);
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < list.count && used < size; i++) {
        char values[64] = "";
        put_values(values, sizeof values, &list.node[i], words[list.word[i]].values, '=', ',');
        used += (size_t)snprintf(text + used, size - used, " %s%s", words[list.word[i]].name, values);
    }
    return used < size ? used : size - 1;
}

/* Reads a name and its numbers, which start and are apart by these characters. */
static int read_word(const char **at, const char *end, char start, char between, int *word,
                     tp_mask_node *node) {
    size_t longest = 0;
    for (int w = 0; w < WORDS; w++) {
        size_t size = strlen(words[w].name);
        if (size <= longest || size > (size_t)(end - *at) || memcmp(*at, words[w].name, size)) continue;
        *word = w;
        longest = size;
    }
    if (longest == 0) return 0;
    *at += longest;
    *node = (tp_mask_node){.kind = words[*word].kind};
    if (words[*word].values == 0) return 1;
    if (node->kind == TP_MASK_PREFIX && (*at == end || **at != start)) {
        node->a = -1; /* its length comes with the tensors */
        return 1;
    }
    int64_t *to[2] = {&node->a, &node->b};
    for (int i = 0; i < words[*word].values; i++) {
        if (*at == end || **at != (i == 0 ? start : between)) return 0;
        ++*at;
        if (!tp__read_integer(at, end, to[i])) return 0;
    }
    return words[*word].values == 2 || node->a >= 0; /* -1 has no number of its own here */
}

const char *tp__mask_word_at(int index, int *values) {
    if (index >= WORDS) return NULL;
    *values = words[index].values;
    return words[index].name;
}

int tp__mask_word_starts(const char *word, const char *end) {
    size_t size = (size_t)(end - word);
    for (int w = 0; w < WORDS; w++) {
        size_t name = strlen(words[w].name);
        if (size < name || memcmp(word, words[w].name, name) != 0) continue;
        if (size == name || (words[w].values > 0 && word[name] == '=')) return 1;
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

tp_status tp__take_mask(tp__words *w) {
    tp__mask_list *list = &w->masks;
    tp_mask_node node;
    tp_error why = TP_ERROR_INIT;
    int word = 0;
    w->at = w->word;
    if (!read_word(&w->at, w->end, '=', ',', &word, &node) || w->at != w->end)
        return words[word].values == 2
                   ? TP__REFUSE_WORD(w, "it takes left,right: -1 (unbounded) or whole numbers in 0..2^40")
                   : TP__REFUSE_WORD(w, "it takes one whole number in 0..2^40");
    if (check_node(&node, &why) != TP_OK) return TP__REFUSE_WORD(w, "%s", why.text);
    for (int i = 0; i < list->count; i++)
        if (list->node[i].kind == node.kind && (node.kind != TP_MASK_WINDOW || equal_nodes(&list->node[i], &node)))
            return node.kind == TP_MASK_WINDOW ? TP__REFUSE_WORD(w, "this window is given twice")
                                               : TP__REFUSE_WORD(w, "repeated; each word may be given once");
    if (list->count == TP__MASK_PARTS)
        return TP__REFUSE_WORD(w, "one mask too many: a tree holds at most %d nodes", TP_MAX_MASK_NODES);
    list->word[list->count] = word;
    list->node[list->count++] = node;
    return TP_OK;
}

tp_status tp__take_mask_tree(tp__words *w) {
    tp_problem *problem = &w->problem;
    tp_error why = TP_ERROR_INIT;
    for (int n = 0;; n++) {
        tp_mask_node node = {0};
        int word;
        if (n == TP_MAX_MASK_NODES)
            return TP__REFUSE_WORD(w, "a tree holds at most %d nodes", TP_MAX_MASK_NODES);
        size_t left = (size_t)(w->end - w->at), size = strcspn(w->at, ", \t\n\r");
        if (left > 0 && size == 3 && memcmp(w->at, "and", 3) == 0)
            node.kind = TP_MASK_AND, w->at += 3;
        else if (left > 0 && size == 2 && memcmp(w->at, "or", 2) == 0)
            node.kind = TP_MASK_OR, w->at += 2;
        else if (!read_word(&w->at, w->end, ':', ':', &word, &node))
            return TP__REFUSE_WORD(w, "it takes mask kinds such as window:3:0 or prefix:4, and 'and' and "
                                      "'or' after the two they join, apart by commas");
        problem->mask[problem->mask_nodes++] = node;
        if (w->at == w->end) break;
        if (*w->at++ != ',') return TP__REFUSE_WORD(w, "kinds must be apart by commas");
    }
    if (tp__mask_check(problem, &why) != TP_OK) return TP__REFUSE_WORD(w, "%s", why.text);
    return TP_OK;
}
