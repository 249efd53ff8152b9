/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/mask_words.h"

#include <stdio.h>
#include <string.h>

int mask_word_at(int index, struct mask_word *word) {
    for (int i = 0; (word->info = tp_mask_at(i)); i++) {
        const char *at = word->info->examples;
        word->name[0] = 0;
        for (size_t length; at += strspn(at, " "), (length = strcspn(at, " ")); at += length) {
            size_t name = strcspn(at, "= ");
            word->again = strlen(word->name) == name && !strncmp(word->name, at, name);
            snprintf(word->name, sizeof word->name, "%.*s", (int)name, at);
            snprintf(word->text, sizeof word->text, "%.*s", (int)length, at);
            if (index-- == 0) return 1;
        }
    }
    return 0;
}

const tp_mask_info *mask_kind(int32_t kind) {
    const tp_mask_info *info = NULL;
    for (int i = 0; (info = tp_mask_at(i)) && info->kind != kind;) i++;
    return info;
}

int mask_has(const tp_problem *problem, int32_t kind) {
    for (int i = 0; i < problem->mask_nodes; i++)
        if (problem->mask[i].kind == kind) return 1;
    return 0;
}

int mask_has_trait(const tp_problem *problem, uint32_t traits) {
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp_mask_info *info = mask_kind(problem->mask[i].kind);
        if (info && info->traits & traits) return 1;
    }
    return 0;
}
