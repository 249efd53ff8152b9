/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a failing trial smaller as long as it fails alike: words go, numbers go down, dtypes become f32. */
#include "check/random.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRIES = 400, SECONDS = 60 };

struct shrinking {
    const struct isolated *isolated;
    struct trial *trial;
    struct finding *finding;
    char alike[24];
    int tries;
    time_t end;
};

static time_t now(void) { return (time_t)now_seconds(); }

static int is_over(const struct shrinking *s) {
    const struct isolated *isolated = s->isolated;
    return s->tries >= TRIES || now() >= s->end || (isolated->walking && isolated->walking(isolated->user, -1));
}

/* The first words of a reason, without its numbers. */
static void first_words(const char *reason, char alike[24]) {
    size_t used = 0;
    for (; *reason && used < 23 && !isdigit((unsigned char)*reason); reason++) alike[used++] = *reason;
    alike[used] = 0;
}

/* Takes the text if it is one and fails alike. */
static int accept(struct shrinking *s, const char *text) {
    struct trial trial;
    struct finding finding;
    struct isolated isolated = *s->isolated;
    char reason[256], alike[24];
    if (is_over(s) || !strcmp(text, s->trial->text)) return 0;
    if (trial_read(&trial, text, s->trial->seed, reason, sizeof reason)) return 0;
    s->tries++;
    isolated.patience = (int)(s->end - now()) + 1;
    isolated_one(&isolated, &trial, s->finding->kernel, &finding);
    if (finding.verdict != TRIAL_FAILED || finding.died != s->finding->died) return 0;
    first_words(finding.reason, alike);
    if (strcmp(alike, s->alike)) return 0;
    finding.number = s->finding->number;
    finding.kernel = s->finding->kernel;
    *s->trial = trial;
    *s->finding = finding;
    return 1;
}

/* The text with `length` characters at `at` replaced. */
static int accept_with(struct shrinking *s, size_t at, size_t length, const char *by) {
    char text[2 * TRIAL_TEXT];
    snprintf(text, sizeof text, "%.*s%s%s", (int)at, s->trial->text, by, s->trial->text + at + length);
    return accept(s, text);
}

static int drop_words(struct shrinking *s) {
    int smaller = 0;
    for (size_t at = 0; s->trial->text[at];) {
        size_t length = strcspn(s->trial->text + at, " ");
        size_t space = s->trial->text[at + length] == ' ';
        if (accept_with(s, at ? at - 1 : 0, length + (at ? 1 : space), ""))
            smaller = 1;
        else
            at += length + space;
    }
    return smaller;
}

/* Entries of seqs=. */
static int drop_sequences(struct shrinking *s) {
    int smaller = 0;
    for (size_t at = 0; s->trial->text[at]; at++) {
        const char *text = s->trial->text;
        size_t length = strcspn(text + at + 1, ", ");
        if (text[at] == ',' ? accept_with(s, at, length + 1, "")
                            : text[at] == '=' && text[at + 1 + length] == ',' && accept_with(s, at + 1, length + 1, ""))
            smaller = 1;
    }
    return smaller;
}

/* A kind of a tree, and one of what joins them behind it. */
static int drop_leaves(struct shrinking *s) {
    const char *word = strstr(s->trial->text, "mask=");
    if (!word) return 0;
    size_t begin = (size_t)(word - s->trial->text) + 5, length = strcspn(word + 5, " ");
    for (size_t at = begin; at < begin + length; at++) {
        if (s->trial->text[at - 1] != ',' && s->trial->text[at - 1] != '=') continue;
        size_t leaf = strcspn(s->trial->text + at, ", ") + 1;
        for (size_t join = at + leaf - 1; join < begin + length; join++) {
            char without[TRIAL_TEXT];
            const char *text = s->trial->text;
            if (text[join] != ',' || (strncmp(text + join, ",and", 4) && strncmp(text + join, ",or", 3))) continue;
            size_t joined = strcspn(text + join + 1, ", ") + 1;
            if (join < at + leaf) /* right behind it: the comma before goes */
                snprintf(without, sizeof without, "%.*s%s", (int)at - 1, text, text + join + joined);
            else
                snprintf(without, sizeof without, "%.*s%.*s%s", (int)at, text, (int)(join - at - leaf), text + at + leaf,
                         text + join + joined);
            if (accept(s, without)) return 1;
        }
    }
    return 0;
}

static int shrink_numbers(struct shrinking *s) {
    int smaller = 0;
    for (size_t at = 0; s->trial->text[at]; at++) {
        if (s->trial->text[at] == '@') break;
        int begins = isdigit((unsigned char)s->trial->text[at]) && (!at || !isalnum((unsigned char)s->trial->text[at - 1]) ||
                                                                     strchr("bhqkdx", s->trial->text[at - 1]));
        if (!begins || (at > 0 && s->trial->text[at - 1] == '.')) continue;
        for (int again = 1; again;) {
            char *end, by[32];
            long long number = strtoll(s->trial->text + at, &end, 10);
            size_t length = (size_t)(end - s->trial->text) - at;
            const long long smallers[] = {0, 1, number / 2, number - number / 4, number - 1};
            again = 0;
            for (int i = 0; i < 5 && !again; i++) {
                if (smallers[i] >= number || (i && smallers[i] <= 1 && i > 1)) continue;
                snprintf(by, sizeof by, "%lld", smallers[i]);
                again = accept_with(s, at, length, by);
            }
            smaller |= again;
        }
    }
    return smaller;
}

static int plain_dtypes(struct shrinking *s) {
    static const char *const starts[] = {" f32", " bf16", " f16"};
    for (int i = 0; i < 3; i++) {
        const char *word = strstr(s->trial->text, starts[i]);
        if (!word) continue;
        if (accept_with(s, (size_t)(word - s->trial->text) + 1, strcspn(word + 1, " "), "f32")) return 1;
    }
    return 0;
}

void shrink(const struct isolated *isolated, struct trial *trial, struct finding *finding) {
    struct shrinking s = {.isolated = isolated, .trial = trial, .finding = finding, .end = now() + SECONDS};
    if (finding->late) return; /* each try would take as long */
    first_words(finding->reason, s.alike);
    while (drop_words(&s) + drop_sequences(&s) + drop_leaves(&s) + plain_dtypes(&s) + shrink_numbers(&s) && !is_over(&s)) {}
}
