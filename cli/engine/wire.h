/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a runner writes (docs/runner-protocol.md): bytes become lines, and lines a greeting or an answer. Nothing of it is
 * believed before it is whole. There is no process and no file here, so that a fuzzer can be the runner.
 */
#ifndef TILEPROOF_CLI_ENGINE_WIRE_H
#define TILEPROOF_CLI_ENGINE_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "tileproof_proof.h"

enum { WIRE_LINE = 4096, WIRE_WHY = 256, WIRE_TEXT = 1024, WIRE_MAX_LINES = 64 };

/* Of one line. WRONG and UNAVAILABLE: `why` has a reason. */
enum wire { WIRE_MORE, WIRE_WHOLE, WIRE_WRONG, WIRE_UNAVAILABLE };

/* Bytes that were received and not yet taken. */
struct wire_bytes {
    size_t used;
    char received[WIRE_LINE];
};

/* WHOLE: the next line, without its end, printable. MORE: it has not come yet; there is room for more bytes. */
enum wire wire_line(struct wire_bytes *bytes, char line[WIRE_LINE], char why[WIRE_WHY]);

struct greeting {
    char name[64], mode[32], device[64]; /* "torch", "eager", "cpu" */
    char versions[1024], host[512];      /* lines of name=value */
};

/* The line of this number, from 0, of a greeting that was {0} before the first. UNAVAILABLE: the engine cannot run here. */
enum wire wire_greeting(struct greeting *greeting, int number, const char *line, char why[WIRE_WHY]);

struct answer {
    int verdicts;     /* how often served, refused or failed was said */
    tp_status status; /* TP_OK, TP_UNSUPPORTED, TP_INVALID */
    int32_t fused;    /* TP_ENGINE_* */
    double written, time_ns;
    int64_t temporary;
    char kernel[256], observed[64], reasons[WIRE_TEXT];
};

/* The line of this number of an answer that was {.written = -1} before the first, to a call whose o has so many bytes. */
enum wire wire_answer(struct answer *answer, int number, const char *line, int64_t o_bytes, char why[WIRE_WHY]);

#endif
