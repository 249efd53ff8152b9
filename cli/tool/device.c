/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char untried[] = "run on PoCL (CPU) and oclgrind; never run on a GPU";

#ifdef TILEPROOF_OPENCL
#include "tileproof_opencl.h"

static tp_opencl *opened;
static char name[160] = "cpu", absent[256], host[300];

static int open_index(int index, tp_opencl **cl, tp_opencl_device *device, tp_error *error) {
    tp_opencl_options wanted = TP_OPENCL_OPTIONS_INIT;
    wanted.index = index;
    *device = (tp_opencl_device){.struct_size = sizeof *device};
    if (tp_opencl_create(&wanted, cl, error) != TP_OK) return complain_status(error);
    tp_opencl_device_of(*cl, device);
    return EXIT_FINE;
}

int device_open(const struct options *options) {
    tp_error error = TP_ERROR_INIT;
    tp_opencl_device device;
    char *end;
    if (!options->device || opened) return EXIT_FINE;
    const char *number = !strncmp(options->device, "opencl:", 7) ? options->device + 7 : "0";
    long index = strtol(number, &end, 10);
    if ((strcmp(options->device, "opencl") && number == options->device) || !*number || *end || index < 0 || index > 63 ||
        strncmp(options->device, "opencl", 6) || (options->device[6] && options->device[6] != ':')) {
        complain("--device is '%s': it must be opencl, or opencl:N with a number of tileproof info", options->device);
        return EXIT_USAGE;
    }
    int code = open_index((int)index, &opened, &device, &error);
    if (code) return code;
    snprintf(name, sizeof name, "opencl:%s", device.name[0] ? device.name : "none");
    snprintf(absent, sizeof absent, "%s", device.why);
    snprintf(host, sizeof host, "platform=%s\ndriver=%s", device.platform, device.driver);
    return EXIT_FINE;
}

void device_close(void) {
    tp_opencl_destroy(opened);
    opened = NULL;
}

const tp_backend *device_backend(void) {
    return tp_opencl_backend(opened);
}
const char *device_name(void) {
    return name;
}
const char *device_absent(void) {
    return absent;
}
const char *device_host(void) {
    return host;
}

static void list_here(void (*print)(int index, const tp_opencl_device *device)) {
    int count = 1;
    for (int i = 0; i < count; i++) {
        tp_opencl *cl = NULL;
        tp_opencl_device device;
        tp_error error = TP_ERROR_INIT;
        if (open_index(i, &cl, &device, &error)) return;
        if (i == 0 && tp_opencl_device_count(cl) > 1) count = tp_opencl_device_count(cl);
        print(i, &device);
        tp_opencl_destroy(cl);
    }
}

/* In a child process: what `info` says of this host does not depend on what drivers do to the process that loads them. */
static void list(void (*print)(int index, const tp_opencl_device *device)) {
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        list_here(print);
        fflush(stdout);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) return;
    if (!WIFSIGNALED(status)) return;
    char why[80];
    snprintf(why, sizeof why, "the process that asked its drivers died of signal %d", WTERMSIG(status));
    print(0, &(tp_opencl_device){.name = "", .platform = "", .driver = "", .why = why});
}

static void print_text(int index, const tp_opencl_device *d) {
    char memory[32], local[32];
    if (!d->name[0] || !d->usable) {
        printf("opencl       %s%s%s\n", d->name, d->name[0] ? ": " : "", d->why);
        return;
    }
    printf("opencl:%d     %s, %s, driver %s\n             memory %s, local %s, %lld units\n", index, d->name, d->platform,
           d->driver, readable_bytes((double)d->memory_bytes, memory), readable_bytes((double)d->local_bytes, local),
           (long long)d->units);
}

static void print_json(int index, const tp_opencl_device *d) {
    printf("%s\n    {\"index\": %d, \"usable\": %s, \"name\": ", index ? "," : "", index, d->usable ? "true" : "false");
    print_json_text(stdout, d->name);
    printf(", \"platform\": ");
    print_json_text(stdout, d->platform);
    printf(", \"driver\": ");
    print_json_text(stdout, d->driver);
    printf(", \"why\": ");
    print_json_text(stdout, d->why);
    printf(", \"memory_bytes\": %lld, \"allocation_bytes\": %lld, \"local_bytes\": %lld, \"units\": %lld}",
           (long long)d->memory_bytes, (long long)d->allocation_bytes, (long long)d->local_bytes, (long long)d->units);
}

void device_list_text(void) {
    list(print_text);
    printf("             kernel opencl: %s\n", untried);
}

void device_list_json(void) {
    printf(",\n  \"opencl\": {\"evidence\": \"%s\", \"devices\": [", untried);
    list(print_json);
    printf("\n  ]}");
}

#else

int device_open(const struct options *options) {
    if (!options->device) return EXIT_FINE;
    complain("--device is '%s': this tool was built without OpenCL's headers (Debian: opencl-c-headers)", options->device);
    return EXIT_USAGE;
}

void device_close(void) {}
const tp_backend *device_backend(void) {
    return NULL;
}
const char *device_name(void) {
    return "cpu";
}
const char *device_host(void) {
    return "";
}
const char *device_absent(void) {
    return "";
}
void device_list_text(void) {
    printf("opencl       not in this build (%s)\n", untried);
}
void device_list_json(void) {
    printf(",\n  \"opencl\": {\"evidence\": \"%s\", \"devices\": []}", untried);
}

#endif

int device_number(void) {
    return device_backend() ? device_backend()->device : TP_CPU;
}

const tp_kernel_info *device_kernel_at(int index) {
    const tp_backend *backend = device_backend();
    return backend ? backend->kernel_at(backend->user, index) : tp_kernel_at(index);
}
