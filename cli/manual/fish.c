/* SPDX-License-Identifier: Apache-2.0 */
/* The script for fish. */
#include "manual/manual.h"

static const char functions[] =
    "# What completes the words of tileproof; made by: tileproof completion fish\n"
    "function __tileproof_is\n"
    "    set -l words (commandline -opc)\n"
    "    test (count $words) -ge 2; and test $words[2] = $argv[1]\n"
    "end\n"
    "function __tileproof_first\n"
    "    set -l words (commandline -opc)\n"
    "    test (count $words) -eq 2; and test $words[2] = $argv[1]\n"
    "end\n"
    "complete -c tileproof -f\n";

static void print_quoted(FILE *out, const char *text) {
    fputc('\'', out);
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\') fputc('\\', out);
        fputc(*text, out);
    }
    fputc('\'', out);
}

/* -x: an argument that is no file; -F: or one that is. */
static void print_wanted(FILE *out, enum wanted wanted, const char *values) {
    fputs(wanted == WANT_FILES || wanted == WANT_MODELS ? " -F" : " -f", out);
    if (wanted == WANT_VALUES) fprintf(out, " -a '%s'", values);
    if (wanted == WANT_FOLDERS) fprintf(out, " -a '(__fish_complete_directories)'");
    if (list_of(wanted)) fprintf(out, " -a '(tileproof completion %s 2>/dev/null)'", list_of(wanted));
}

static void print_command(FILE *out, const struct command *command) {
    struct option_view option;
    char values[256];
    fprintf(out, "complete -c tileproof -n __fish_use_subcommand -a %s -d ", command->name);
    print_quoted(out, command->help);
    fprintf(out, "\ncomplete -c tileproof -n '__tileproof_first help' -a %s\n", command->name);
    for (int i = 0; !option_at(command->bit, i, &option); i++) {
        enum wanted wanted = wanted_by_option(&option, values, sizeof values);
        fprintf(out, "complete -c tileproof -n '__tileproof_is %s'", command->name);
        if (option.name[1] == '-')
            fprintf(out, " -l %s", option.name + 2);
        else
            fprintf(out, " -s %s", option.name + 1);
        if (*option.letter) fprintf(out, " -s %s", option.letter + 1);
        fputs(" -d ", out);
        print_quoted(out, option.help);
        if (option.argument) {
            fputs(" -r", out);
            print_wanted(out, wanted, values);
        }
        fputs("\n", out);
    }
    enum wanted wanted = wanted_by_command(command, values, sizeof values);
    if (*values) fprintf(out, "complete -c tileproof -n '__tileproof_first %s' -a '%s'\n", command->name, values);
    if (!wanted) return;
    fprintf(out, "complete -c tileproof -n '__tileproof_is %s'", command->name);
    print_wanted(out, wanted, values);
    fputs("\n", out);
}

void print_fish(FILE *out) {
    fputs(functions, out);
    for (int i = 0; command_at(i); i++)
        if (command_at(i)->help) print_command(out, command_at(i));
    fputs("complete -c tileproof -n __fish_use_subcommand -a help -d 'of a command'\n"
          "complete -c tileproof -n __fish_use_subcommand -l help -d 'help'\n"
          "complete -c tileproof -n __fish_use_subcommand -l version -d 'the version'\n",
          out);
}
