/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as what a runner writes: a greeting, then answers to calls whose o has 4,096 bytes. However the
   bytes are cut into pieces the same is made of them. What is whole keeps the rules, and what is not has a printable reason. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/wire.h"

enum { O_BYTES = 4096, ANSWERS = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
    if (!condition) abort();
}

static int printable(const char *text, size_t size, const char *also) {
    size_t length = strnlen(text, size);
    for (size_t i = 0; i < length; i++)
        if ((text[i] < 0x20 || text[i] > 0x7E) && !strchr(also, text[i])) return 0;
    return length < size;
}

/* A runner that writes these bytes, some at a time, and then nothing more. */
struct writer {
    const char *text;
    size_t left, piece;
    struct wire_bytes bytes;
};

/* As process_receive(). 1: there is no line, and why. */
static int receive(struct writer *w, char line[WIRE_LINE], char why[WIRE_WHY]) {
    for (;;) {
        size_t before = w->bytes.used, room = sizeof w->bytes.received - before;
        enum wire found = wire_line(&w->bytes, line, why);
        if (found != WIRE_MORE) require(found == WIRE_WRONG || printable(line, WIRE_LINE, ""));
        if (found != WIRE_MORE) return found == WIRE_WRONG;
        require(w->bytes.used == before && room > 0);
        size_t n = w->piece < w->left ? w->piece : w->left;
        n = n < room ? n : room;
        if (!n) return strcpy(why, "no more"), 1;
        memcpy(w->bytes.received + w->bytes.used, w->text, n);
        w->bytes.used += n;
        w->text += n;
        w->left -= n;
    }
}

/* Each line is a name and a value. */
static void check_versions(const char *list, size_t size) {
    require(printable(list, size, "\n"));
    for (const char *line = list; *line;) {
        size_t length = strcspn(line, "\n"), name = strcspn(line, "= ");
        require(name > 0 && line[name] == '=' && length > name + 1 && length < 256);
        line += length + (line[length] == '\n');
    }
}

static void check_greeting(const struct greeting *g) {
    require(g->name[0] && printable(g->name, sizeof g->name, "") && g->device[0] && printable(g->device, sizeof g->device, ""));
    require(!g->mode[0] || !strcmp(g->mode, "eager") || !strcmp(g->mode, "compiled") || !strcmp(g->mode, "graph"));
    check_versions(g->versions, sizeof g->versions);
    check_versions(g->host, sizeof g->host);
}

static void check_answer(const struct answer *a) {
    require(a->status == TP_OK || a->status == TP_UNSUPPORTED || a->status == TP_INVALID);
    require(a->verdicts == 1 && (a->status != TP_OK || a->written == O_BYTES));
    require(a->fused == TP_ENGINE_FUSED || a->fused == TP_ENGINE_UNFUSED || a->fused == TP_ENGINE_UNKNOWN);
    require(isfinite(a->time_ns) && a->time_ns >= 0 && a->time_ns <= 1e15 && a->temporary >= 0 &&
            a->temporary <= INT64_C(1) << 50);
    require(printable(a->kernel, sizeof a->kernel, "") && printable(a->observed, sizeof a->observed, ""));
    require(printable(a->reasons, sizeof a->reasons, "") && (a->status == TP_OK || a->reasons[0]));
}

/* All that was made of the bytes. */
struct made {
    enum wire greeted;
    int answers;
    struct greeting greeting;
    struct answer answer[ANSWERS];
    char why[WIRE_WHY];
};

static enum wire greet(struct writer *w, struct made *m) {
    char line[WIRE_LINE];
    enum wire found = WIRE_MORE;
    for (int number = 0; found == WIRE_MORE; number++) {
        require(number <= WIRE_MAX_LINES);
        if (receive(w, line, m->why)) return WIRE_WRONG;
        found = wire_greeting(&m->greeting, number, line, m->why);
    }
    return found;
}

static enum wire answer(struct writer *w, struct made *m, struct answer *a) {
    char line[WIRE_LINE];
    enum wire found = WIRE_MORE;
    *a = (struct answer){.written = -1};
    for (int number = 0; found == WIRE_MORE; number++) {
        require(number <= WIRE_MAX_LINES);
        if (receive(w, line, m->why)) return WIRE_WRONG;
        found = wire_answer(a, number, line, O_BYTES, m->why);
    }
    return found;
}

static void make(struct made *m, const uint8_t *data, size_t size, size_t piece) {
    struct writer w = {.text = (const char *)data, .left = size, .piece = piece};
    memset(m, 0, sizeof *m);
    m->greeted = greet(&w, m);
    require(m->greeted == WIRE_WHOLE || (m->why[0] && printable(m->why, sizeof m->why, "")));
    if (m->greeted != WIRE_WHOLE) return;
    check_greeting(&m->greeting);
    require(!m->why[0]);
    for (; m->answers < ANSWERS && answer(&w, m, &m->answer[m->answers]) == WIRE_WHOLE; m->answers++)
        check_answer(&m->answer[m->answers]);
    require(m->answers == ANSWERS || (m->why[0] && printable(m->why, sizeof m->why, "")));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct made whole, cut;
    make(&whole, data, size, size + 1);
    make(&cut, data, size, size % 13 + 1);
    require(whole.greeted == cut.greeted && whole.answers == cut.answers && !strcmp(whole.why, cut.why));
    require(!memcmp(&whole.greeting, &cut.greeting, sizeof whole.greeting));
    for (int i = 0; i < whole.answers; i++)
        require(!strcmp(whole.answer[i].kernel, cut.answer[i].kernel) &&
                !strcmp(whole.answer[i].reasons, cut.answer[i].reasons) && whole.answer[i].status == cut.answer[i].status &&
                whole.answer[i].time_ns == cut.answer[i].time_ns);
    return 0;
}
