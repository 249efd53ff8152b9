/* SPDX-License-Identifier: Apache-2.0 */
/* lock diff: words that are files begin a side, words that are not say which revision of the file before them. */
#include "lock/lock.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "qualify/qualify.h"

struct side {
    const char *path;
    struct wanted wanted;
    tp_lock *lock;
};

/* FILE A B: two revisions of one lock; FILE FILE: two locks, by name; FILE A FILE B; FILE FILE A; FILE: the last two of each
   model; FILE A: what came after it. */
static int read_sides(const struct options *options, struct side side[2]) {
    int files = 0, words[2] = {0, 0};
    for (int i = 1; i < options->file_count; i++) {
        const char *word = options->files[i];
        if (!access(word, F_OK) && files < 2) {
            side[files++].path = word;
            continue;
        }
        int at = files - 1;
        if (at < 0 || words[at] == 2 - at) break;
        side[at + words[at]++].wanted.word = word; /* the second word of the first file is the other side's */
    }
    int count = 1 + files + words[0] + words[1];
    if (!files || count != options->file_count || (files == 2 && words[0] == 2)) {
        complain(
            "lock diff takes a lock and two revisions of it, or two locks, with a revision behind each or not: lock diff a.lock "
            "llama@1a2b llama@9f8e");
        return EXIT_USAGE;
    }
    if (files == 1) side[1].path = side[0].path;
    if (files == 2 && words[1] && !words[0]) side[0].wanted.word = side[1].wanted.word;
    return EXIT_FINE;
}

/* The last revision of a side that belongs to this one: its model's, or by a word; of its engine where there is such. -1: none */
static int64_t partner(const struct side *side, const tp_lock_revision *mine, int64_t self, int by_name) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    int64_t found = -1;
    int best = -1;
    for (int64_t i = 0; tp_lock_revision_at(side->lock, i, &one) == TP_OK; i++) {
        if (i == self || !revision_means(&one, side->wanted) || (by_name && strcmp(one.model, mine->model))) continue;
        int fits = revision_same_engine(&one, mine);
        if (fits >= best) best = fits, found = i;
    }
    return found;
}

/* Every pair, the first side's revisions in order. */
static int print_pairs(const struct options *options, const struct side side[2], int one_file) {
    int json = options->format && !strcmp(options->format, "json"), count = 0;
    tp_lock_revision mine = TP_LOCK_REVISION_INIT;
    tp_status status = TP_OK;
    if (json) printf("[");
    for (int64_t i = 0; status == TP_OK && tp_lock_revision_at(side[0].lock, i, &mine) == TP_OK; i++) {
        if (!revision_means(&mine, side[0].wanted)) continue;
        int in_order = one_file && !side[1].wanted.word;
        int64_t other = in_order ? revision_next(side[0].lock, i)
                                 : partner(&side[1], &mine, one_file ? i : -1, !side[1].wanted.word);
        if (other < 0 || (in_order && !side[0].wanted.word && revision_next(side[0].lock, other) >= 0)) continue;
        if (json && count) printf(",\n");
        count++;
        status = tp_lock_diff(side[0].lock, i, side[1].lock, other, json ? TP_JSON : TP_TEXT, write_to_file, stdout);
    }
    if (json) printf("]\n");
    if (status != TP_OK) {
        complain("the difference could not be written: %s", tp_status_name(status));
        return EXIT_FAILED;
    }
    if (count) return EXIT_FINE;
    complain("nothing to compare: %s%s%s has no two revisions that belong together", side[0].path, one_file ? "" : " and ",
             one_file ? "" : side[1].path);
    return EXIT_USAGE;
}

int lock_diff(const struct options *options, const char *cache) {
    struct side side[2] = {{.wanted.cache = cache}, {.wanted.cache = cache}};
    int code = read_sides(options, side);
    int one_file = !code && side[0].path == side[1].path;
    for (int i = 0; i < 2 && !code; i++) {
        code = i && one_file ? EXIT_FINE : lock_read_file(side[i].path, &side[i].lock);
        if (!code && i && one_file) side[1].lock = side[0].lock;
        if (!code && (side[i].wanted.word || cache) && revision_find(side[i].lock, side[i].wanted, 0) < 0)
            code = complain_revision(side[i].path, side[i].lock, side[i].wanted);
    }
    if (!code) code = print_pairs(options, side, one_file);
    tp_lock_destroy(side[0].lock);
    if (!one_file) tp_lock_destroy(side[1].lock);
    return code;
}
