/* SPDX-License-Identifier: Apache-2.0 */
/* Comma lists with ranges, and the product of several as problem texts. */
#include "bench/bench.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ITEMS = 4096, MAX_AXES = 32, MAX_NUMBER = 1 << 30 };

void list_free(struct list *list) {
    for (int i = 0; i < list->count; i++) free(list->items[i]);
    free(list->items);
    *list = (struct list){0};
}

static int list_add(struct list *list, const char *item) {
    char **items = realloc(list->items, ((size_t)list->count + 1) * sizeof *items);
    if (!items) return 1;
    list->items = items;
    items[list->count] = strdup(item);
    if (!items[list->count]) return 1;
    list->count++;
    return 0;
}

static int is_number_end(const char *item, size_t at) {
    if (isdigit((unsigned char)item[at])) return 1;
    return (item[at] == 'k' || item[at] == 'm') && at && isdigit((unsigned char)item[at - 1]);
}

/* Where "first-" starts and the '-' lies; 0 when the item has no range. */
static int find_range(const char *item, size_t *start, size_t *dash) {
    for (size_t i = 1; item[i]; i++) {
        if (item[i] != '-' || !is_number_end(item, i - 1) || !isdigit((unsigned char)item[i + 1]))
            continue;
        *dash = *start = i;
        if (!isdigit((unsigned char)item[*start - 1])) (*start)--;
        while (*start && isdigit((unsigned char)item[*start - 1])) (*start)--;
        return 1;
    }
    return 0;
}

static int64_t read_number(const char **at) {
    char *end;
    int64_t value = strtoll(*at, &end, 10);
    if (value > MAX_NUMBER) value = MAX_NUMBER;
    int64_t unit = *end == 'k' ? 1024 : *end == 'm' ? 1024 * 1024 : 1;
    *at = unit > 1 ? end + 1 : end;
    return value * unit;
}

static int too_many(char *reason, size_t size) {
    snprintf(reason, size, "the list has more than %d items", MAX_ITEMS);
    return 1;
}

static int expand_item(struct list *list, const char *item, char *reason, size_t size) {
    size_t start, dash;
    if (!*item) {
        snprintf(reason, size, "an item is empty");
        return 1;
    }
    if (strlen(item) >= BENCH_WORDS / 2) {
        snprintf(reason, size, "'%.40s...' is too long", item);
        return 1;
    }
    if (!find_range(item, &start, &dash)) {
        if (list->count >= MAX_ITEMS) return too_many(reason, size);
        return list_add(list, item);
    }
    const char *at = item + start;
    int64_t first = read_number(&at);
    at++;
    int64_t last = read_number(&at), step = 1, factor = 1;
    if (*at == '+' || *at == '*') {
        char kind = *at++;
        int64_t by = isdigit((unsigned char)*at) ? read_number(&at) : 0;
        if (by < (kind == '*' ? 2 : 1)) {
            snprintf(reason, size, "'%s': a step is at least +1, a factor at least *2", item);
            return 1;
        }
        *(kind == '*' ? &factor : &step) = by;
    }
    if (first > last || (factor > 1 && first < 1)) {
        snprintf(reason, size, "'%s': a range goes up, and from 1 at least when it multiplies",
                 item);
        return 1;
    }
    for (int64_t value = first; value <= last;) {
        char text[BENCH_WORDS];
        if (list->count >= MAX_ITEMS) return too_many(reason, size);
        snprintf(text, sizeof text, "%.*s%lld%s", (int)start, item, (long long)value, at);
        if (list_add(list, text)) return 1;
        if (factor > 1 && value > last / factor) break;
        value = factor > 1 ? value * factor : value + step;
    }
    return 0;
}

int list_expand(struct list *list, const char *text, char *reason, size_t size) {
    snprintf(reason, size, "no memory");
    for (const char *at = text;; at++) {
        char item[BENCH_WORDS];
        size_t length = strcspn(at, ",");
        snprintf(item, sizeof item, "%.*s", (int)length, at);
        if (expand_item(list, item, reason, size)) return 1;
        at += length;
        if (!*at) return 0;
    }
}

struct axes {
    struct list axis[MAX_AXES];
    int count;
};

enum axis_kind { AXIS_PLAIN, AXIS_HEADS, AXIS_DIM, AXIS_CAUSAL, AXIS_WINDOW, AXIS_PAGED };

/* The word of the text form that an item stands for; nonzero when it is no such item. */
static int item_word(enum axis_kind kind, const char *item, char *word, size_t size) {
    long long left, right;
    char rest;
    word[0] = 0;
    switch (kind) {
    case AXIS_PLAIN: snprintf(word, size, "%s", item); return 0;
    case AXIS_HEADS: snprintf(word, size, "h%s", item); return 0;
    case AXIS_DIM: snprintf(word, size, "d%s", item); return 0;
    case AXIS_CAUSAL:
        if (!strcmp(item, "1")) snprintf(word, size, "causal");
        return strcmp(item, "0") && strcmp(item, "1");
    case AXIS_PAGED:
        if (sscanf(item, "%lld%c", &left, &rest) != 1 || left < 0) return 1;
        if (left > 0) snprintf(word, size, "paged=%lld", left);
        return 0;
    case AXIS_WINDOW:
        if (sscanf(item, "%lld/%lld%c", &left, &right, &rest) == 2)
            return snprintf(word, size, "window=%lld,%lld", left, right) < 0;
        if (sscanf(item, "%lld%c", &left, &rest) != 1 || left < 0) return 1;
        if (left > 0) snprintf(word, size, "window=%lld,0", left - 1);
        return 0;
    }
    return 1;
}

/* d64,128 is d64,d128: an item of digits takes the letter of the first, unless it is a shape. */
static const char *left_out(enum axis_kind kind, const char *first, const char *item) {
    static const char *const letters[] = {"b", "h", "q", "k", "d"};
    if (kind != AXIS_PLAIN || !isdigit((unsigned char)item[0]) || strchr(item, 'q')) return "";
    for (int i = 0; i < 5; i++)
        if (first[0] == letters[i][0] && isdigit((unsigned char)first[1])) return letters[i];
    return "";
}

static int add_axis(struct axes *axes, const char *option, const char *text, enum axis_kind kind,
                    const char *rule) {
    struct list raw = {0};
    char reason[BENCH_WORDS + 64], word[BENCH_WORDS + 4];
    if (axes->count == MAX_AXES) {
        complain("the problem has more than %d words", MAX_AXES);
        return EXIT_USAGE;
    }
    struct list *axis = &axes->axis[axes->count++];
    int failed = list_expand(&raw, text, reason, sizeof reason);
    if (failed) complain("%s is '%s': %s", option, text, reason);
    for (int i = 0; !failed && i < raw.count; i++) {
        char spelled[BENCH_WORDS + 2];
        snprintf(spelled, sizeof spelled, "%s%s", left_out(kind, raw.items[0], raw.items[i]),
                 raw.items[i]);
        failed = item_word(kind, spelled, word, sizeof word);
        if (failed) complain("%s has '%s': it must be %s", option, raw.items[i], rule);
        if (!failed) failed = list_add(axis, word);
    }
    list_free(&raw);
    return failed ? EXIT_USAGE : EXIT_FINE;
}

/* Words of the command line are lists too, except the two that have commas of their own. */
static int add_words(struct axes *axes, const char *words) {
    int code = EXIT_FINE;
    for (const char *at = words; !code && *(at += strspn(at, " ")); at += strcspn(at, " ")) {
        char word[BENCH_WORDS];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, " "), at);
        if (strncmp(word, "window=", 7) && strncmp(word, "seqs=", 5)) {
            code = add_axis(axes, "a word", word, AXIS_PLAIN, "");
        } else if (axes->count < MAX_AXES) {
            if (list_add(&axes->axis[axes->count++], word)) code = EXIT_FAILED;
        } else {
            complain("the problem has more than %d words", MAX_AXES);
            code = EXIT_USAGE;
        }
    }
    return code;
}

static int multiply(const struct axes *axes, struct list *problems) {
    int at[MAX_AXES] = {0}, axis;
    do {
        char text[BENCH_WORDS] = "";
        size_t used = 0;
        for (int i = 0; i < axes->count; i++) {
            const char *word = axes->axis[i].items[at[i]];
            if (*word && used < sizeof text)
                used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? " " : "",
                                         word);
        }
        if (used >= sizeof text || problems->count >= MAX_ITEMS) {
            complain("a problem is longer than %d characters, or there are more than %d",
                     BENCH_WORDS - 1, MAX_ITEMS);
            return EXIT_USAGE;
        }
        if (list_add(problems, text)) return EXIT_FAILED;
        for (axis = axes->count - 1; axis >= 0 && ++at[axis] == axes->axis[axis].count; axis--)
            at[axis] = 0;
    } while (axis >= 0);
    return EXIT_FINE;
}

int list_problems(const struct options *options, struct list *problems) {
    struct axes axes = {0};
    int given = options->problem[0] != 0;
    if (given && options->shapes) {
        complain("both a problem and --shape are given: the problem has a shape already");
        return EXIT_USAGE;
    }
    const struct {
        const char *option, *text, *otherwise, *rule;
        enum axis_kind kind;
    } lists[] = {
        {"--shape", options->shapes, "q1k,q4k", "", AXIS_PLAIN},
        {"--heads", options->heads, "4/4", "", AXIS_HEADS},
        {"--head-dim", options->head_dims, "64,128", "", AXIS_DIM},
        {"--dtype", options->dtypes, "f32", "", AXIS_PLAIN},
        {"--causal", options->causals, "0,1", "0 or 1", AXIS_CAUSAL},
        {"--window", options->windows, NULL,
         "0 for none, a number of keys with the row's own, or LEFT/RIGHT", AXIS_WINDOW},
        {"--paged", options->pages, NULL, "0 for none, or the tokens of a page", AXIS_PAGED},
    };
    int code = add_words(&axes, options->problem);
    for (size_t i = 0; !code && i < sizeof lists / sizeof *lists; i++) {
        const char *text = lists[i].text ? lists[i].text : given ? NULL : lists[i].otherwise;
        if (text) code = add_axis(&axes, lists[i].option, text, lists[i].kind, lists[i].rule);
    }
    if (!code) code = multiply(&axes, problems);
    for (int i = 0; i < axes.count; i++) list_free(&axes.axis[i]);
    return code;
}
