/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Man pages and completions, from the tables that --help prints: nothing is written twice.
 *
 *     manual.c      a page of roff for the tool and for each command; the build asks for them
 *     completion.c  tileproof completion, and what may stand for an argument
 *     bash.c, zsh.c, fish.c   the script of a shell
 */
#ifndef TILEPROOF_CLI_MANUAL_MANUAL_H
#define TILEPROOF_CLI_MANUAL_MANUAL_H

#include "cli.h"

/* What may stand for an argument. */
enum wanted { WANT_NOTHING, WANT_VALUES, WANT_FILES, WANT_FOLDERS, WANT_MODELS, WANT_KERNELS, WANT_WORDS };

/* Of an option; with WANT_VALUES, values gets them, a blank between two. */
enum wanted wanted_by_option(const struct option_view *option, char *values, size_t size);
/* Of the words behind a command; values are then those of the first word alone. */
enum wanted wanted_by_command(const struct command *command, char *values, size_t size);
/* The words of `tileproof completion` that list what there is, "models"; NULL: nothing to ask for. */
const char *list_of(enum wanted wanted);

void print_bash(FILE *out);
void print_zsh(FILE *out);
void print_fish(FILE *out);

#endif
