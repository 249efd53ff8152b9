/* SPDX-License-Identifier: Apache-2.0 */
/* The command: every file is read first, then the page is written, whole or not at all. */
#include "report/report.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tool/files.h"

/* page/, made part of the tool by cmake/embed.cmake */
extern const char report_page_html[], report_page_css[], report_page_js[], report_page_js_hash[];

static int put_content(struct report *report, FILE *out) {
    static int (*const before[])(const struct report *, FILE *) = {report_verdict, report_matrix, report_engines};
    static const enum row_kind history[] = {ROWS_CHANGE, ROWS_HISTORY}, uses[] = {ROWS_WATCH, ROWS_CAPACITY};
    int code = EXIT_FINE;
    for (size_t i = 0; !code && i < sizeof before / sizeof *before; i++) code = before[i](report, out);
    for (int i = 0; !code && i < 2; i++) code = report_table(report, history[i], out);
    if (!code) code = report_heat(report, out);
    if (!code) code = report_charts(report, out);
    for (int i = 0; !code && i < 2; i++) code = report_table(report, uses[i], out);
    return code ? code : report_environment(report, out);
}

static int put_data(struct report *report, FILE *out) {
    return report_write_data(report, out);
}

/* The frame, with what stands for each {{name}} in its place. */
static int put_page(struct report *report, FILE *out) {
    const struct {
        const char *name, *text;
        int (*put)(struct report *report, FILE *out); /* where there is no text */
    } places[] = {{"hash", report_page_js_hash, NULL},
                  {"style", report_page_css, NULL},
                  {"content", NULL, put_content},
                  {"data", NULL, put_data},
                  {"script", report_page_js, NULL}};
    const char *at = report_page_html, *mark;
    for (; (mark = strstr(at, "{{")); at = strstr(mark, "}}") + 2) {
        fwrite(at, 1, (size_t)(mark - at), out);
        for (size_t i = 0; i < sizeof places / sizeof *places; i++)
            if (!strncmp(mark + 2, places[i].name, strlen(places[i].name))) {
                if (places[i].text) fputs(places[i].text, out);
                int code = places[i].put ? places[i].put(report, out) : EXIT_FINE;
                if (code) return code;
            }
    }
    fputs(at, out);
    return EXIT_FINE;
}

static int write_page(struct report *report, const char *path) {
    struct atomic_file file;
    int code = file_open(&file, path);
    if (code) return code;
    code = put_page(report, file.stream);
    int closed = file_close(&file, !code);
    return code ? code : closed;
}

static void say_written(const char *path) {
    struct stat made;
    char size[32];
    if (!strcmp(path, "-") || stat(path, &made)) return;
    char *whole = S_ISREG(made.st_mode) ? realpath(path, NULL) : NULL;
    if (whole) printf("report: %s (%s)\n", whole, readable_bytes((double)made.st_size, size));
    free(whole);
}

int command_report(const struct options *options) {
    struct report report = {.file_count = options->file_count};
    const char *path = options->format ? options->format : "report.html";
    int code = EXIT_FINE;
    if (!options->file_count) {
        complain("no file given: for example tileproof report build/qualify.json -o report.html");
        return EXIT_USAGE;
    }
    report.files = calloc((size_t)options->file_count, sizeof *report.files);
    if (!report.files) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    for (int i = 0; i < options->file_count; i++) report.files[i].path = options->files[i];
    for (int i = 0; !code && i < options->file_count; i++)
        code = file_clash(&(struct named_file){"--output", path}, &(struct named_file){"the file", options->files[i]});
    for (int i = 0; !code && i < options->file_count; i++) code = report_read_file(&report, &report.files[i]);
    if (!code) code = report_locks(&report);
    if (!code) code = report_order(&report);
    if (!code) code = write_page(&report, path);
    if (!code) say_written(path);
    report_free(&report);
    return code;
}
