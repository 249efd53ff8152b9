/* SPDX-License-Identifier: Apache-2.0 */
/* The script for bash: needs bash alone, not the package bash-completion. */
#include "manual/manual.h"

/* $1 is what is looked for, or one of the words of `tileproof completion`. */
static const char functions[] =
    "# What completes the words of tileproof; made by: tileproof completion bash\n"
    "_tileproof_values() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$word\"); }\n"
    "_tileproof_list() { _tileproof_values \"$(tileproof completion \"$1\" 2>/dev/null)\"; }\n"
    "_tileproof_files() {\n"
    "    local -a files\n"
    "    compopt -o filenames 2>/dev/null\n"
    "    mapfile -t files < <(compgen \"$1\" -- \"$word\")\n"
    "    COMPREPLY+=(\"${files[@]}\")\n"
    "}\n"
    "_tileproof() {\n"
    "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
    "    COMPREPLY=()\n"
    "    if [[ $COMP_CWORD -gt 2 && $word == = ]]; then\n"
    "        word=\n"
    "    elif [[ $COMP_CWORD -gt 3 && $before == = ]]; then\n"
    "        before=${COMP_WORDS[COMP_CWORD-2]}\n"
    "    fi\n";

static void print_wanted(FILE *out, enum wanted wanted, const char *values) {
    if (wanted == WANT_VALUES) fprintf(out, "_tileproof_values '%s'", values);
    if (list_of(wanted)) fprintf(out, "_tileproof_list %s%s", list_of(wanted), wanted == WANT_MODELS ? "; " : "");
    if (wanted == WANT_FILES || wanted == WANT_MODELS) fprintf(out, "_tileproof_files -f");
    if (wanted == WANT_FOLDERS) fprintf(out, "_tileproof_files -d");
}

static void print_arguments(FILE *out, const struct command *command) {
    struct option_view option;
    char values[256];
    for (int i = 0; !option_at(command->bit, i, &option); i++) {
        enum wanted wanted = wanted_by_option(&option, values, sizeof values);
        if (!option.argument) continue;
        fprintf(out, "    '%s %s')", command->name, option.name);
        if (*option.letter) fprintf(out, " ;&\n    '%s %s')", command->name, option.letter);
        fprintf(out, " ");
        print_wanted(out, wanted, values);
        fprintf(out, "%sreturn ;;\n", wanted ? "; " : "");
    }
}

static void print_options(FILE *out, const struct command *command) {
    struct option_view option;
    fprintf(out, "    %s) _tileproof_values '", command->name);
    for (int i = 0; !option_at(command->bit, i, &option); i++)
        fprintf(out, "%s%s%s%s", i ? " " : "", option.letter, *option.letter ? " " : "", option.name);
    fprintf(out, "' ;;\n");
}

void print_bash(FILE *out) {
    char values[256];
    fputs(functions, out);
    fputs("    if [[ $COMP_CWORD == 1 ]]; then\n        _tileproof_values '", out);
    for (int i = 0; command_at(i); i++)
        if (command_at(i)->help) fprintf(out, "%s ", command_at(i)->name);
    fputs("help --help --version'\n        return\n    fi\n    case \"${COMP_WORDS[1]} $before\" in\n", out);
    for (int i = 0; command_at(i); i++)
        if (command_at(i)->help) print_arguments(out, command_at(i));
    fputs("    esac\n    [[ $word != -* ]] || case ${COMP_WORDS[1]} in\n", out);
    for (int i = 0; command_at(i); i++)
        if (command_at(i)->help) print_options(out, command_at(i));
    fputs("    esac\n    [[ $word == -* ]] || case ${COMP_WORDS[1]}:$COMP_CWORD in\n    help:2) _tileproof_values '", out);
    for (int i = 0; command_at(i); i++)
        if (command_at(i)->help) fprintf(out, "%s%s", i ? " " : "", command_at(i)->name);
    fputs("' ;;\n", out);
    for (int i = 0; command_at(i); i++) {
        const struct command *command = command_at(i);
        if (!command->help) continue;
        enum wanted wanted = wanted_by_command(command, values, sizeof values);
        if (*values) fprintf(out, "    %s:2) _tileproof_values '%s' ;;\n", command->name, values);
        if (!wanted) continue;
        fprintf(out, "    %s:*) ", command->name);
        print_wanted(out, wanted, values);
        fputs(" ;;\n", out);
    }
    fputs("    esac\n}\ncomplete -F _tileproof tileproof\n", out);
}
