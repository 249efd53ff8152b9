/* SPDX-License-Identifier: Apache-2.0 */
#include "plot/plot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int draw(const struct plot *plot, const struct plot_rows *rows, const char *folder,
                int *drawn) {
    struct series_list list = {0};
    char origin[256];
    int code = EXIT_FINE, any;
    if (plot_collect(plot, rows, &list, &any)) {
        complain("no memory for the plot '%s'", plot->name);
        code = EXIT_FAILED;
    } else if (!list.count) {
        printf("not drawn: %s: no rows of kind %s%s%s\n", plot->name, plot_kind_names[plot->kind],
               any && *plot->lacking ? " " : "", any ? plot->lacking : "");
    } else {
        plot_origin(rows, plot->kind, origin, sizeof origin);
        code = plot_draw(plot, &list, origin, folder);
        if (!code && list.left_out)
            printf("%s shows %d series; %d more are left out\n", plot->name, SHOWN_SERIES,
                   list.left_out);
        *drawn += !code;
    }
    plot_series_free(&list);
    return code;
}

int command_plot(const struct options *options) {
    const char *folder = options->format ? options->format : ".";
    struct plot_rows rows = {0};
    int code = EXIT_FINE, drawn = 0;
    if (!options->file_count) {
        complain("no file given: tileproof plot FILE.jsonl... -o DIR");
        return EXIT_USAGE;
    }
    for (int i = 0; !code && i < options->file_count; i++)
        code = plot_read(&rows, options->files[i]);
    if (!code && !rows.count) {
        complain("%s: it holds no rows", options->files[0]);
        code = EXIT_USAGE;
    }
    struct stat found;
    if (!code && ((mkdir(folder, 0777) && errno != EEXIST) || stat(folder, &found))) {
        complain("--output is '%s': %s", folder, strerror(errno));
        code = EXIT_USAGE;
    } else if (!code && !S_ISDIR(found.st_mode)) {
        complain("--output is '%s': it must be a directory", folder);
        code = EXIT_USAGE;
    }
    for (int i = 0; !code && plot_at(i); i++)
        if (plot_at(i)->kind < KIND_LINES) code = draw(plot_at(i), &rows, folder, &drawn);
    if (!code && !drawn) {
        complain("nothing was drawn");
        code = EXIT_REFUSED;
    }
    free(rows.row);
    return code;
}
