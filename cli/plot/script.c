/* SPDX-License-Identifier: Apache-2.0 */
#include "plot/plot.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WIDTH = 1100, HEIGHT = 560, PEER_LINE = 26, LEGEND_LINE = 24, NOT_FOUND = 127, PATH = 1024 };

static const char *const colours[] = {"#1b6ca8", "#2a9d8f", "#6a4c93", "#386641",
                                      "#0096c7", "#7209b7", "#577590"};
static const char *const math_colours[] = {"#d1495b", "#e07a1f", "#b5651d", "#9d0208"};
enum { COLOURS = sizeof colours / sizeof *colours, MATH_COLOURS = 4 };

/* In single quotes gnuplot knows one escape: a quote is written twice. The end of a line would end the command, and what
   follows would be one of its own: control characters become blanks. */
static void quote(FILE *to, const char *text) {
    fputc('\'', to);
    for (; *text; text++) {
        if (*text == '\'') fputc('\'', to);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, to);
    }
    fputc('\'', to);
}

static void setting(FILE *to, const char *name, const char *text) {
    fprintf(to, "set %s ", name);
    quote(to, text);
    fputc('\n', to);
}

static void ranges(const struct series_list *list, double low[2], double high[2]) {
    low[0] = low[1] = INFINITY;
    high[0] = high[1] = 0;
    for (int s = 0; s < list->count; s++)
        for (size_t i = 0; i < list->series[s].count; i++) {
            const struct point *p = &list->series[s].points[i];
            low[0] = fmin(low[0], p->lo > 0 && p->hi > 0 ? p->lo : p->x);
            high[0] = fmax(high[0], fmax(p->x, p->hi));
            low[1] = fmin(low[1], p->y);
            high[1] = fmax(high[1], p->y);
        }
}

/* A label that would reach beyond the picture keeps its two ends: the phase and the heads, the dtype and the threads. It is cut
   between words, where they are short enough, and never within a character of UTF-8. */
enum { LABEL = 66, LABEL_HEAD = 34, LABEL_TAIL = LABEL - LABEL_HEAD - 3, LABEL_WORD = 16 };
static int within_character(char c) { return ((unsigned char)c & 0xC0) == 0x80; }
static void put_label(const char *label, FILE *to) {
    char text[LABEL + 1];
    size_t length = strlen(label), head = LABEL_HEAD, tail = length - LABEL_TAIL;
    if (length > LABEL) {
        for (size_t i = head; i > LABEL_HEAD - LABEL_WORD && head == LABEL_HEAD; i--)
            if (label[i - 1] == ' ') head = i;
        const char *blank = memchr(label + tail, ' ', LABEL_WORD);
        if (blank) tail = (size_t)(blank - label);
        while (head && within_character(label[head])) head--;
        while (within_character(label[tail])) tail++;
        snprintf(text, sizeof text, "%.*s...%s", (int)head, label, label + tail);
        label = text;
    }
    quote(to, label);
}

/* A place in a list for each label, and a margin that the longest one fits in. */
static void write_labels(const struct series_list *list, FILE *to) {
    size_t longest = 0;
    fputs("set ytics (", to);
    for (int s = 0, first = 1; s < list->count; s++)
        for (size_t i = 0; i < list->series[s].count; i++) {
            const struct point *point = &list->series[s].points[i];
            size_t length = strlen(point->label);
            if (!length) continue;
            if (length > longest) longest = length;
            fputs(first ? "" : ", ", to);
            first = 0;
            put_label(point->label, to);
            fprintf(to, " %g", point->y);
        }
    fprintf(to, ")\nset lmargin %g\n", 3 + 0.78 * (double)(longest > LABEL ? LABEL : longest));
}

/* 1, 2 and 5 of each power of ten: a range within one power of ten has numbers, too. */
static void write_decimal_tics(double low, double high, FILE *to) {
    static const int steps[] = {1, 2, 5};
    fputs("set xtics (", to);
    int count = high > 1e4 * low ? 1 : 3, first = 1;
    for (int power = (int)floor(log10(low)); pow(10, power) <= high; power++)
        for (int i = 0; i < count; i++) {
            fprintf(to, "%s%g", first ? "" : ", ", steps[i] * pow(10, power));
            first = 0;
        }
    fputs(")\n", to);
}

static void write_axes(const struct plot *plot, const struct series_list *list, FILE *to) {
    double low[2], high[2];
    ranges(list, low, high);
    if (plot->log_x) fprintf(to, "set logscale x %d\n", plot->log_x);
    if (plot->log_y) fprintf(to, "set logscale y %d\n", plot->log_y);
    if (plot->lengths) { /* powers of two, as people write lengths */
        fprintf(to, "set xrange [%g:%g]\nset xtics (", low[0] / 1.15, high[0] * 1.15);
        int first = 1;
        for (double at = 1; at <= high[0] * 1.1; at *= 2) {
            if (at < low[0] / 1.1) continue;
            fprintf(to, at >= 1024 ? "%s'%gk' %g" : "%s'%g' %g", first ? "" : ", ",
                    at >= 1024 ? at / 1024 : at, at);
            first = 0;
        }
        fputs(")\n", to);
    }
    if (plot->labels) {
        int around_one = plot->kind == KIND_PEER;
        fprintf(to, "set xrange [%g:%g]\nset yrange [%g:-0.6]\n", (around_one ? fmin(low[0], 1) : low[0]) / 1.2,
                (around_one ? fmax(high[0], 1) : high[0]) * 1.2, high[1] + 0.6);
        write_labels(list, to);
        if (!around_one) write_decimal_tics(low[0] / 1.2, high[0] * 1.2, to);
    } else if (plot->log_y) {
        fprintf(to, "set yrange [%g:%g]\n", low[1] / 1.6, high[1] * 1.6);
    } else {
        fprintf(to, "set yrange [0:%g]\n", high[1] * 1.1);
    }
    if (plot->log_x && !plot->lengths && !plot->labels)
        fprintf(to, "set xrange [%g:%g]\n", low[0] / 3, high[0] * 3);
    if (plot->more) fprintf(to, "%s\n", plot->more);
}

static void write_data(const struct series_list *list, FILE *to) {
    for (int s = 0; s < list->count; s++) {
        fprintf(to, "$s%d << END\n", s);
        for (size_t i = 0; i < list->series[s].count; i++) {
            const struct point *p = &list->series[s].points[i];
            fprintf(to, "%.9g %.9g %.9g %.9g\n", p->x, p->y, p->lo, p->hi);
        }
        fputs("END\n", to);
    }
}

/* A roof: the lower of peak and bandwidth times intensity, both the highest seen. */
static void write_roof(const struct plot_series *series, FILE *to) {
    double peak = 0, read = 0;
    char name[SERIES_NAME + 64];
    for (size_t i = 0; i < series->count; i++) {
        peak = fmax(peak, series->points[i].y);
        read = fmax(read, series->points[i].lo);
    }
    fprintf(to, "(x*%g < %g ? x*%g : %g) with lines lw 2 lc rgb '#555555' title ", read, peak, read,
            peak);
    snprintf(name, sizeof name, "%s: %.0f GFLOP/s, %.1f GB/s", series->name, peak, read);
    quote(to, name);
}

static void write_series(const struct plot *plot, const struct series_list *list, FILE *to) {
    int ours = 0, math = 0;
    fputs("plot ", to);
    for (int s = 0; s < list->count; s++) {
        const struct plot_series *series = &list->series[s];
        if (s) fputs(", \\\n     ", to);
        switch (series->look) {
        case LOOK_LIMIT: write_roof(series, to); continue;
        case LOOK_MIN:
            fprintf(to, "$s%d using 1:2 with lines dt 3 lw 2 lc rgb '#888888' title ", s);
            break;
        case LOOK_OURS:
            fprintf(to, "$s%d %s pt 7 ps 1.1 lw 2 lc rgb '%s' title ", s, plot->with,
                    colours[ours % COLOURS]);
            ours++;
            break;
        case LOOK_MATH:
            fprintf(to, "$s%d %s pt 9 ps 1.3 lw 2 lc rgb '%s' title ", s, plot->with,
                    math_colours[math % MATH_COLOURS]);
            math++;
            break;
        }
        quote(to, series->name);
    }
    fputc('\n', to);
}

static int height(const struct plot *plot, const struct series_list *list) {
    size_t rows = 0;
    for (int s = 0; s < list->count; s++)
        for (size_t i = 0; i < list->series[s].count; i++) rows += list->series[s].points[i].label[0] != 0;
    int legend = LEGEND_LINE * ((list->count + 1) / 2);
    return legend + (plot->labels ? 180 + PEER_LINE * (int)rows : HEIGHT);
}

/* files: the SVG, and the PNG or NULL */
static void write_script(const struct plot *plot, const struct series_list *list, const char *origin,
                         const char *const files[2], FILE *to) {
    static const char *const terminals[] = {"svg noenhanced background rgb 'white' font 'sans,13'",
                                            "pngcairo noenhanced font 'sans,11'"};
    int below = (list->count + 1) / 2;
    fputs("set encoding utf8\nset style line 9 lc rgb '#dddddd' lw 1\nset grid ls 9\n"
          "set border 3 lc rgb '#666666'\nset tics nomirror\n"
          "set tmargin 4.5\nset rmargin 4\n",
          to);
    fprintf(to, "set bmargin %g\n", 4 + 1.5 * below);
    fprintf(to,
            "set key bmargin left Left reverse vertical maxrows %d width 2 samplen 2 spacing 1.1\n",
            below);
    /* double quotes: here \n is a new line, and neither part may hold a quote */
    fprintf(to, "set label 1 \"%s\\n%s\" at screen 0.015, graph 1 left offset 0,2.6\n", plot->title,
            origin);
    setting(to, "xlabel", plot->x_label);
    setting(to, "ylabel", plot->y_label);
    write_data(list, to);
    write_axes(plot, list, to);
    for (int i = 0; i < 2 && files[i]; i++) {
        fprintf(to, "set terminal %s size %d,%d\n", terminals[i], WIDTH, height(plot, list));
        setting(to, "output", files[i]);
        write_series(plot, list, to);
        fputs("unset output\n", to);
    }
}

/* Starts gnuplot with a script on its standard input. */
static FILE *start_gnuplot(pid_t *child) {
    int ends[2];
    if (pipe(ends)) return NULL;
    fflush(NULL);
    *child = fork();
    if (*child == 0) {
        char *command[] = {"gnuplot", "-", NULL};
        if (dup2(ends[0], 0) >= 0) {
            close(ends[0]);
            close(ends[1]);
            execvp(command[0], command);
        }
        _exit(NOT_FOUND);
    }
    close(ends[0]);
    if (*child > 0) return fdopen(ends[1], "w");
    close(ends[1]);
    return NULL;
}

static int run_gnuplot(const struct plot *plot, const struct series_list *list, const char *origin,
                       const char *const files[2]) {
    pid_t child;
    int status;
    void (*before)(int) = signal(SIGPIPE, SIG_IGN); /* when gnuplot is not there */
    FILE *script = start_gnuplot(&child);
    if (!script) {
        complain("gnuplot could not be started: %s", strerror(errno));
        return EXIT_FAILED;
    }
    write_script(plot, list, origin, files, script);
    fclose(script);
    signal(SIGPIPE, before);
    if (waitpid(child, &status, 0) != child) return EXIT_FAILED;
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_FOUND) {
        complain("not run here: gnuplot was not found (Debian: gnuplot-nox)");
        return EXIT_REFUSED;
    }
    if (status) complain("gnuplot failed on the plot '%s'", plot->name);
    return status ? EXIT_FAILED : EXIT_FINE;
}

int plot_draw(const struct plot *plot, const struct series_list *list, const char *origin,
              const char *folder) {
    static const char *const ends[] = {"svg", "png"};
    char files[2][PATH], last[PATH];
    for (int i = 0; i < 2; i++)
        if (snprintf(files[i], PATH, "%s/.%s.%d.%s", folder, plot->name, (int)getpid(), ends[i]) >=
            PATH) {
            complain("%s: the path is too long", folder);
            return EXIT_USAGE;
        }
    int code = run_gnuplot(plot, list, origin, (const char *const[]){files[0], files[1]});
    for (int i = 0; i < 2; i++) {
        snprintf(last, sizeof last, "%s/%s.%s", folder, plot->name, ends[i]);
        if (!code && rename(files[i], last)) {
            complain("%s: %s", last, strerror(errno));
            code = EXIT_FAILED;
        }
        if (code) unlink(files[i]);
    }
    if (!code) printf("drawn: %s/%s.svg and .png\n", folder, plot->name);
    return code;
}

int plot_draw_svg(const struct plot *plot, const struct series_list *list, const char *origin, const char *svg) {
    return run_gnuplot(plot, list, origin, (const char *const[]){svg, NULL});
}
