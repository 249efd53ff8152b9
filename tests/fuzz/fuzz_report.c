/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a file of tileproof report. Either they are refused, or all parts of the page that need no
   gnuplot are made of them: nothing of the bytes is markup there, and the data are JSON. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "report/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
    if (!condition) abort();
}

/* Every tag is one that the page is made of. */
static void check_markup(const char *page) {
    static const char *const tags[] = {"section",  "div",    "p",     "ul",    "li",     "h2",     "h3",     "br",
                                       "strong",   "b",      "small", "code",  "button", "a",      "span",   "table",
                                       "thead",    "tbody",  "tr",    "th",    "td",     "dl",     "dt",     "dd",
                                       "fieldset", "legend", "label", "input", "select", "option", "output", "caption"};
    for (const char *at = page; (at = strchr(at, '<')); at++) {
        const char *name = at + 1 + (at[1] == '/');
        size_t length = strcspn(name, " >"), i = 0;
        while (i < sizeof tags / sizeof *tags && (strlen(tags[i]) != length || memcmp(tags[i], name, length))) i++;
        require(i < sizeof tags / sizeof *tags);
    }
}

static char *made(struct report *report, int page) {
    static int (*const parts[])(const struct report *, FILE *) = {report_verdict, report_matrix, report_engines, report_heat,
                                                                  report_environment};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    require(out != NULL);
    for (size_t i = 0; page && i < sizeof parts / sizeof *parts; i++) require(!parts[i](report, out));
    for (int kind = ROWS_RATE; page && kind < ROW_KINDS; kind++) require(!report_table(report, (enum row_kind)kind, out));
    if (!page) require(!report_write_data(report, out));
    require(!fclose(out));
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int quiet;
    struct report report = {.file_count = 1};
    char *text = malloc(size + 1);
    if (!quiet++) require(freopen("/dev/null", "w", stderr) != NULL); /* complaints */
    report.files = calloc(1, sizeof *report.files);
    require(text && report.files);
    memcpy(text, data, size);
    text[size] = 0;
    report.files[0].path = "fuzz";
    if (!report_read_text(&report, &report.files[0], text, size)) {
        require(!report_locks(&report) && !report_order(&report));
        char *page = made(&report, 1), *block = made(&report, 0);
        check_markup(page);
        json_t *whole = json_loads(block, JSON_REJECT_DUPLICATES, NULL);
        require(json_is_object(whole) && !strpbrk(block, "<>&"));
        json_decref(whole);
        free(page);
        free(block);
    }
    free(text);
    report_free(&report);
    return 0;
}
