/* SPDX-License-Identifier: Apache-2.0 */
#include "report/report.h"

#include <math.h>
#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

void html_text(FILE *out, const char *text) {
    for (int size; *text; text += size ? size : 1) {
        size = utf8_size(text);
        switch (*text) {
        case '&': fputs("&amp;", out); continue;
        case '<': fputs("&lt;", out); continue;
        case '>': fputs("&gt;", out); continue;
        case '"': fputs("&quot;", out); continue;
        case '\'': fputs("&#39;", out); continue;
        }
        if (!size || ((unsigned char)*text < ' ' && *text != '\n' && *text != '\t') || *text == 127)
            fputs(replacement, out);
        else
            fwrite(text, 1, (size_t)size, out);
    }
}

void html_element(FILE *out, const char *name, const char *css, const char *text) {
    fprintf(out, css ? "<%s class=\"%s\">" : "<%s>", name, css);
    html_text(out, text);
    fprintf(out, "</%.*s>", (int)strcspn(name, " "), name);
}

/* Three significant digits without an exponent where that is short. */
static void plain(double value, const char *unit, char text[48]) {
    double size = fabs(value);
    int decimals = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.1 ? 3 : 4;
    if (value == 0)
        snprintf(text, 48, "0%s", unit);
    else if (size >= 1e9 || size < 1e-3)
        snprintf(text, 48, "%.2e%s", value, unit);
    else
        snprintf(text, 48, "%.*f%s", decimals, value, unit);
}

static void seconds(double value, char text[48]) {
    if (value >= 1)
        plain(value, " s", text);
    else if (value >= 1e-3)
        plain(value * 1e3, " ms", text);
    else
        plain(value * 1e6, " \xC2\xB5s", text);
}

void number_text(double value, enum number_form form, char text[48]) {
    char part[32];
    text[0] = 0;
    if (!isfinite(value)) return;
    switch (form) {
    case FORM_PLAIN: plain(value, "", text); break;
    case FORM_COUNT: snprintf(text, 48, "%s", fabs(value) < 9e15 ? grouped((int64_t)value, part) : "many"); break;
    case FORM_BYTES: snprintf(text, 48, "%s", readable_bytes(value, part)); break;
    case FORM_NS: seconds(value * 1e-9, text); break;
    case FORM_SECONDS: seconds(value, text); break;
    case FORM_SHARE: plain(value * 100, " %", text); break;
    case FORM_PERCENT: plain(value, " %", text); break;
    case FORM_TIMES: plain(value, " \xC3\x97", text); break;
    }
}

struct status_look status_look(int status) {
    static const struct status_look looks[] = {
        [TP_CELL_NOT_RUN] = {"\xE2\x80\x93", "not run", "none"},
        [TP_CELL_QUALIFIED] = {"Q", "qualified", "good"},
        [TP_CELL_QUALIFIED_FALLBACK] = {"F", "fallback", "okay"},
        [TP_CELL_NUMERIC_FAIL] = {"X", "numeric fail", "bad"},
        [TP_CELL_UNSUPPORTED] = {"U", "unsupported", "refused"},
        [TP_CELL_MISTRUSTED] = {"M", "mistrusted", "doubt"},
        [TP_CELL_STALE] = {"S", "stale", "doubt"},
        [TP_CELL_NUMERICS_CHANGED] = {"C", "numerics changed", "doubt"},
    };
    return looks[status];
}

void html_status(FILE *out, int status) {
    struct status_look look = status_look(status);
    fprintf(out, "<span class=\"status %s\"><b>%s</b> %s</span>", look.css, look.letter, look.word);
}
