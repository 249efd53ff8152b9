/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean": which of some names a word was meant to be. */
#ifndef TILEPROOF_CLI_TOOL_NEAREST_H
#define TILEPROOF_CLI_TOOL_NEAREST_H

struct nearest {
    const char *word;
    char name[96]; /* the nearest so far; "": none is near */
    int distance;
};

struct nearest nearest_to(const char *word);
void nearest_try(struct nearest *nearest, const char *name);
/* ". Did you mean NAME?", or "": to stand behind a complaint. Until the next call. */
const char *nearest_question(struct nearest *nearest);

#endif
