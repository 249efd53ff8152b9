/* SPDX-License-Identifier: Apache-2.0 */
/* Where the figures come from: hosts, builds, dates and seeds that rows name, and the files themselves. */
#include "report/report.h"

#include <string.h>

enum { MAX_VALUES = 12 };

static const struct {
    const char *title, *field;
} fields[] = {
    {"host", "host"},
    {"machine", "machine"},
    {"instruction sets", "isa"},
    {"operating system", "os"},
    {"version", "version"},
    {"build", "build"},
    {"engine", "engine"},
    {"versions of engines", "versions"},
    {"device", "device"},
    {"threads", "threads"},
    {"seed", "seed"},
    {"date", "date"},
    {"summed up", "summarised"},
};

static int is_time(const char *field) { return !strcmp(field, "date") || !strcmp(field, "summarised"); }

/* The different values of a field, in the order of appearance. Of a time, its day. */
static json_t *values_of(const struct report *report, const char *field) {
    json_t *values = json_object(), *row;
    size_t i;
    for (int kind = 0; kind < ROW_KINDS; kind++) {
        if (kind == ROWS_CHANGE || kind == ROWS_HISTORY) continue;
        json_array_foreach(report->rows[kind], i, row) {
            const json_t *value = json_object_get(row, field);
            char text[400] = "";
            if (json_is_string(value))
                snprintf(text, sizeof text, "%.*s", is_time(field) ? 10 : 399, json_string_value(value));
            else if (json_is_integer(value))
                snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
            if (*text && is_utf8(text)) json_object_set_new(values, text, json_true());
        }
    }
    return values;
}

static void put_values(const struct report *report, const char *title, const char *field, FILE *out) {
    json_t *values = values_of(report, field), *ignored;
    const char *value;
    int shown = 0;
    if (json_object_size(values)) {
        html_element(out, "dt", NULL, title);
        json_object_foreach(values, value, ignored) if (shown++ < MAX_VALUES) html_element(out, "dd", NULL, value);
        if (shown > MAX_VALUES) fprintf(out, "<dd>and %d more</dd>", shown - MAX_VALUES);
    }
    json_decref(values);
}

int report_environment(const struct report *report, FILE *out) {
    char text[32];
    fputs("<section id=\"environment\" data-nav=\"Environment\"><h2>Where this comes from</h2><p>What the rows say of "
          "themselves; each row says it on click, too.</p><dl>\n",
          out);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) put_values(report, fields[i].title, fields[i].field, out);
    fputs("</dl>\n<div class=\"scroll\"><table id=\"files\"><thead><tr><th scope=\"col\">file</th><th scope=\"col\">it "
          "holds</th><th scope=\"col\" "
          "class=\"n\">rows</th></tr></thead><tbody>\n",
          out);
    for (int i = 0; i < report->file_count; i++) {
        const struct report_file *file = &report->files[i];
        fputs("<tr>", out);
        html_element(out, "td", NULL, file->path);
        html_element(out, "td", NULL, file->what);
        fprintf(out, "<td class=\"n\" data-v=\"%zu\">%s</td></tr>\n", file->rows, grouped((int64_t)file->rows, text));
    }
    fprintf(out,
            "</tbody></table></div>\n<p class=\"note\">Made by tileproof %s. This page is one file: it loads nothing and sends "
            "nothing.</p></section>\n",
            tp_version());
    return EXIT_FINE;
}
