/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "terminal/terminal.h"

#include <stdarg.h>
#include <string.h>

void complain(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    progress_clear();
    fputs("tileproof: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

int complain_at(const struct place *place, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    complain("%s:%d: %s", place->file, place->line, text);
    return EXIT_USAGE;
}

int exit_code_of(tp_status status) {
    switch (status) {
    case TP_OK: return EXIT_FINE;
    case TP_INVALID: return EXIT_USAGE;
    case TP_UNSUPPORTED:
    case TP_NOT_LOCKED:
    case TP_FALLBACK_REFUSED: return EXIT_REFUSED;
    default: return EXIT_FAILED;
    }
}

const char *option_for(const tp_error *error) {
    static const struct {
        tp_status status;
        const char *begins, *option; /* the text, and what to say behind it */
    } helps[] = {{TP_FALLBACK_REFUSED, "", "; on the command line: --fallback permit"},
                 {TP_UNSUPPORTED, "a cell is refused, and the update", "; on the command line: --accept-unsupported"},
                 {TP_INVALID, "cache is not said", "; on the command line: --kv-cache"},
                 {TP_NO_MEMORY, "threads is ", "; on the command line: --threads N"},
                 {TP_NO_MEMORY, "no memory for the read", ": --read-mib takes fewer MiB, and 0 for none"}};
    for (size_t i = 0; i < sizeof helps / sizeof *helps; i++)
        if (error->status == (int)helps[i].status && !strncmp(error->text, helps[i].begins, strlen(helps[i].begins)))
            return helps[i].option;
    return "";
}

int complain_status(const tp_error *error) {
    complain("%s%s (%s)", error->text, option_for(error), tp_status_name((tp_status)error->status));
    return exit_code_of((tp_status)error->status);
}

int write_to_file(void *cookie, const char *bytes, size_t size) {
    return fwrite(bytes, 1, size, (FILE *)cookie) != size;
}

int utf8_size(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    int size = *c < 0x80 ? 1 : *c >= 0xC2 && *c < 0xE0 ? 2 : *c >= 0xE0 && *c < 0xF0 ? 3 : *c >= 0xF0 && *c < 0xF5 ? 4 : 0;
    for (int i = 1; i < size; i++)
        if (c[i] >> 6 != 2) return 0; /* the end of the text is no such byte either */
    /* long forms, surrogates, beyond U+10FFFF */
    int bad = (*c == 0xE0 && c[1] < 0xA0) || (*c == 0xED && c[1] > 0x9F) || (*c == 0xF0 && c[1] < 0x90) ||
              (*c == 0xF4 && c[1] > 0x8F);
    return bad ? 0 : size;
}

int is_utf8(const char *text) {
    for (int size; *text; text += size)
        if (!(size = utf8_size(text))) return 0;
    return 1;
}

void print_json_text(FILE *out, const char *text) {
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        int size = utf8_size((const char *)c);
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(out, "\\u%04x", *c);
        else if (!size)
            fputs("\\ufffd", out); /* JSON has no other bytes */
        else
            fwrite(c, 1, (size_t)size, out);
        c += size ? size : 1;
    }
    fputc('"', out);
}

void print_wrapped(FILE *out, int used, int indent, const char *text) {
    size_t column = (size_t)used;
    for (int first = 1; *text; first = 0) {
        size_t length = strcspn(text, " ");
        if (!first && column + 1 + length > TERMINAL_COLUMNS) {
            fprintf(out, "\n%*s", indent, "");
            column = (size_t)indent;
        } else if (!first) {
            column += (size_t)fprintf(out, " ");
        }
        column += (size_t)fprintf(out, "%.*s", (int)length, text);
        text += length + (text[length] == ' ');
    }
    fprintf(out, "\n");
}

void add_name(char *list, size_t size, const char *name) {
    const char *last = list;
    if (!*name) return;
    for (const char *at = list; *at; at += strcspn(at, "+"), at += *at == '+') {
        if (strcspn(at, "+") == strlen(name) && !memcmp(at, name, strlen(name))) return;
        last = at;
    }
    size_t used = strlen(list);
    if (!strcmp(last, "..")) return;
    if (used + (used > 0) + strlen(name) < size) {
        snprintf(list + used, size - used, "%s%s", used ? "+" : "", name);
        return;
    }
    while (used && used + sizeof "+.." > size) { /* the last ones give way to what says that they did */
        char *plus = strrchr(list, '+');
        *(plus ? plus : list) = 0;
        used = strlen(list);
    }
    if (used || size > 2) snprintf(list + used, size - used, "%s..", used ? "+" : "");
}
