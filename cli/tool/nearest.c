/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/nearest.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST = 64 };

static int min(int a, int b) { return a < b ? a : b; }

/* Letters put in, left out, replaced, or two neighbours swapped: how many of these lead from one word to the other. */
static int distance(const char *a, const char *b) {
    int row[3][LONGEST + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > LONGEST || m > LONGEST) return LONGEST;
    for (int j = 0; j <= m; j++) row[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = row[i % 3], *before = row[(i + 2) % 3], *two = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            now[j] = min(min(before[j], now[j - 1]) + 1, before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = min(now[j], two[j - 2] + 1);
        }
    }
    return row[n % 3][m];
}

struct nearest nearest_to(const char *word) {
    return (struct nearest){.word = word, .distance = ((int)strlen(word) + 2) / 3 + 1}; /* a third of its letters */
}

void nearest_try(struct nearest *nearest, const char *name) {
    size_t length = strlen(nearest->word);
    int begins = length > 2 && !strncmp(name, nearest->word, length);
    int far = begins ? 1 : distance(nearest->word, name);
    if (far >= nearest->distance || strlen(name) >= sizeof nearest->name) return;
    nearest->distance = far;
    strcpy(nearest->name, name);
}

const char *nearest_question(struct nearest *nearest) {
    static char text[sizeof nearest->name + 32];
    if (!nearest->name[0]) return "";
    snprintf(text, sizeof text, ". Did you mean %s?", nearest->name);
    return text;
}
