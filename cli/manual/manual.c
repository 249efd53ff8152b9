/* SPDX-License-Identifier: Apache-2.0 */
/* A man page: the words of --help as roff. */
#include "manual/manual.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Text as it is, or broken at blanks behind a width: roff would read these bytes as its own. At the beginning of a line \& keeps
   a dot from being a request. */
static void print_as(FILE *out, const char *text, int width) {
    int begins = 1, column = 0;
    for (const char *c = text; *c; c++, column++) {
        if (begins && (*c == '.' || *c == '\'')) fputs("\\&", out);
        begins = *c == '\n' || (*c == ' ' && width && column > width);
        if (begins) {
            fputc('\n', out);
            column = 0;
            continue;
        }
        switch (*c) {
        case '\\': fputs("\\e", out); break;
        case '-': fputs("\\-", out); break;
        case '\'': fputs("\\(aq", out); break;
        case '`': fputs("\\(ga", out); break;
        case '^': fputs("\\(ha", out); break;
        case '~': fputs("\\(ti", out); break;
        default: fputc(*c, out);
        }
    }
}

static void print_text(FILE *out, const char *text) {
    print_as(out, text, 0);
}
/* In lines that are not long; roff fills them. */
static void print_filled(FILE *out, const char *text) {
    print_as(out, text, 40);
}

/* Lines that stay as they are, from the left margin: they fill a terminal. */
static void print_block(FILE *out, const char *text) {
    fputs(".nf\n.in 0\n", out);
    print_text(out, text);
    fputs(".in\n.fi\n", out);
}

/* The build puts the date of the release where there is none. */
static void print_title(FILE *out, const char *page) {
    fputs(".\\\" Made by tileproof manual.\n.TH \"", out);
    for (const char *c = page; *c; c++) fputc(toupper((unsigned char)*c), out);
    fprintf(out, "\" 1 \"\" \"tileproof %s\" \"User Commands\"\n", tp_version());
}

static void print_problems(FILE *out) {
    char *text = NULL;
    size_t size;
    FILE *memory = open_memstream(&text, &size);
    if (!memory) return;
    help_problem(memory);
    fclose(memory);
    while (size > 1 && text[size - 2] == '\n') text[--size] = 0;
    fputs(".SH PROBLEMS\n", out);
    print_block(out, text);
    free(text);
}

/* The first line of the text says what the section says. */
static void print_ends(FILE *out) {
    fputs(".SH EXIT STATUS\n", out);
    print_block(out, strchr(help_exit, '\n') + 1);
    fputs(
        ".SH ENVIRONMENT\n.TP\n\\fBNO_COLOR\\fR\nWhere it is set and not empty, nothing is coloured;\nnor where "
        "\\fBTERM\\fR is \\fIdumb\\fR, or the output is no terminal.\n",
        out);
}

/* A text in bold (B) or italics (I). */
static void print_in(FILE *out, char font, const char *text) {
    fprintf(out, "\\f%c", font);
    print_text(out, text);
    fputs("\\fR", out);
}

static void print_option(FILE *out, const struct option_view *option) {
    fputs(".TP\n", out);
    if (*option->letter) {
        print_in(out, 'B', option->letter);
        fputs(", ", out);
    }
    print_in(out, 'B', option->name);
    if (option->argument) {
        fputs(" ", out);
        print_in(out, 'I', option->argument);
    }
    fputs("\n", out);
    print_filled(out, option->help);
    fputs("\n", out);
}

static void print_command(FILE *out, const char *page, const struct command *command) {
    struct option_view option;
    print_title(out, page);
    fputs(".SH NAME\n", out);
    print_text(out, page);
    fputs(" \\- ", out);
    print_filled(out, command->help);
    fprintf(out, "\n.SH SYNOPSIS\n\\fBtileproof %s\\fR [\\fIOPTIONS\\fR]", command->name);
    print_text(out, command->words);
    fputs("\n.SH OPTIONS\n", out);
    for (int i = 0; !option_at(command->bit, i, &option); i++) print_option(out, &option);
    fputs(".SH EXAMPLES\n", out);
    print_block(out, command->examples);
    if (strstr(command->words, "PROBLEM")) print_problems(out);
    print_ends(out);
    fputs(".SH SEE ALSO\n.BR tileproof (1)\n", out);
}

static void print_tool(FILE *out) {
    const char *before = "";
    print_title(out, "tileproof");
    fputs(".SH NAME\ntileproof \\- exact attention that never writes the score matrix,\nand says what ran\n"
          ".SH SYNOPSIS\n\\fBtileproof\\fR \\fICOMMAND\\fR [\\fIWORDS\\fR]\n.SH COMMANDS\n",
          out);
    for (int i = 0; command_at(i); i++) {
        const struct command *command = command_at(i);
        if (!command->help) continue;
        fprintf(out, ".TP\n\\fB%s\\fR", command->name);
        print_text(out, command->words);
        fputs("\n", out);
        print_filled(out, command->help);
        fputs("\n", out);
    }
    fputs(".SH OPTIONS\n.TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nhelp; \\fBtileproof help\\fR \\fICOMMAND\\fR: of a command\n"
          ".TP\n\\fB\\-\\-version\\fR\nthe version\n",
          out);
    print_problems(out);
    print_ends(out);
    fputs(".SH SEE ALSO\n", out);
    for (int i = 0; command_at(i); i++) {
        if (!command_at(i)->help) continue;
        fprintf(out, "%s.BR tileproof\\-%s (1)", before, command_at(i)->name);
        before = ",\n";
    }
    fputs("\n", out);
}

/* Without a word: the names of the pages. */
int command_manual(const struct options *options) {
    const char *page = options->problem;
    if (!*page) puts("tileproof");
    if (!strcmp(page, "tileproof")) {
        print_tool(stdout);
        return EXIT_FINE;
    }
    for (int i = 0; command_at(i); i++) {
        char name[64];
        if (!command_at(i)->help) continue;
        snprintf(name, sizeof name, "tileproof-%s", command_at(i)->name);
        if (!*page) puts(name);
        if (strcmp(page, name)) continue;
        print_command(stdout, name, command_at(i));
        return EXIT_FINE;
    }
    if (!*page) return EXIT_FINE;
    complain("manual has no page '%s': tileproof manual lists them", page);
    return EXIT_USAGE;
}
