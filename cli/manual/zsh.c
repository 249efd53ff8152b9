/* SPDX-License-Identifier: Apache-2.0 */
/* The script for zsh: a function of fpath, or sourced. */
#include "manual/manual.h"

#include <string.h>

static const char functions[] =
    "#compdef tileproof\n"
    "# What completes the words of tileproof; made by: tileproof completion zsh\n"
    "_tileproof_list() { local -a names=(${(f)\"$(tileproof completion $1 2>/dev/null)\"}); compadd -a names }\n"
    "_tileproof_models() { _tileproof_list models; _files }\n"
    "_tileproof() {\n"
    "    local command=$words[2]\n";

/* Inside quotes, brackets and colons are _arguments' own. */
static void print_escaped(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '\'') fputs("'\\'", out);
        if (strchr("[]:\\", *text)) fputc('\\', out);
        fputc(*text, out);
    }
}

static void print_wanted(FILE *out, enum wanted wanted, const char *values) {
    if (wanted == WANT_VALUES) fprintf(out, "(%s)", values);
    if (wanted == WANT_FILES) fprintf(out, "_files");
    if (wanted == WANT_FOLDERS) fprintf(out, "_files -/");
    if (wanted == WANT_MODELS)
        fprintf(out, "_tileproof_models");
    else if (list_of(wanted))
        fprintf(out, "{_tileproof_list %s}", list_of(wanted));
}

static void print_one(FILE *out, const char *name, const struct option_view *option) {
    char values[256];
    enum wanted wanted = wanted_by_option(option, values, sizeof values);
    fprintf(out, " \\\n        '*%s%s[", name, !option->argument ? "" : name[1] == '-' ? "=" : "+");
    print_escaped(out, option->help);
    fputs("]", out);
    if (option->argument) {
        fputs(":", out);
        print_escaped(out, option->argument);
        fputs(":", out);
        print_wanted(out, wanted, values);
    }
    fputs("'", out);
}

static void print_command(FILE *out, const struct command *command) {
    struct option_view option;
    char values[256];
    enum wanted wanted = wanted_by_command(command, values, sizeof values);
    fprintf(out, "    %s) _arguments", command->name);
    for (int i = 0; !option_at(command->bit, i, &option); i++) {
        print_one(out, option.name, &option);
        if (*option.letter) print_one(out, option.letter, &option);
    }
    if (*values) fprintf(out, " \\\n        '1:word:(%s)'", values);
    if (wanted) {
        fprintf(out, " \\\n        '*:word:");
        print_wanted(out, wanted, "");
        fputs("'", out);
    }
    fputs(" ;;\n", out);
}

void print_zsh(FILE *out) {
    fputs(functions, out);
    fputs("    local -a commands=(", out);
    for (int i = 0; command_at(i); i++) {
        if (!command_at(i)->help) continue;
        fprintf(out, "\n        '%s:", command_at(i)->name);
        print_escaped(out, command_at(i)->help);
        fputs("'", out);
    }
    fputs("\n        'help:of a command')\n"
          "    if (( CURRENT == 2 )); then\n"
          "        _describe command commands\n"
          "        [[ $PREFIX != -* ]] || compadd -- --help --version\n"
          "        return\n"
          "    fi\n"
          "    shift words\n"
          "    (( CURRENT-- ))\n"
          "    case $command in\n"
          "    help) (( CURRENT > 2 )) || _describe command commands ;;\n",
          out);
    for (int i = 0; command_at(i); i++)
        if (command_at(i)->help) print_command(out, command_at(i));
    fputs("    esac\n}\n"
          "if [[ $funcstack[1] == _tileproof ]]; then _tileproof \"$@\"; else compdef _tileproof tileproof; fi\n",
          out);
}
