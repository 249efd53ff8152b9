/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/device.h"

#include "tool/evidence.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef TILEPROOF_OPENCL
#include "tileproof_opencl.h"

static tp_opencl *opened;
static struct device_bytes bytes_of_it;
static int number; /* of the device that --device names, among those of the loader */
static char name[160] = "cpu", absent[256], host[400], versions[80], kind[16];

static int open_index(int index, const char *library, tp_opencl **cl, tp_opencl_device *device, tp_error *error) {
    tp_opencl_options wanted = TP_OPENCL_OPTIONS_INIT;
    wanted.index = index;
    wanted.library = library;
    *device = (tp_opencl_device){.struct_size = sizeof *device};
    if (tp_opencl_create(&wanted, cl, error) != TP_OK) return complain_status(error);
    tp_opencl_device_of(*cl, device);
    return EXIT_FINE;
}

static int parse(const char *text) {
    char *end;
    const char *digits = !strncmp(text, "opencl:", 7) ? text + 7 : "0";
    long index = strtol(digits, &end, 10);
    number = (int)index;
    if ((!strcmp(text, "opencl") || digits == text + 7) && *digits && !*end && index >= 0 && index <= 63) return EXIT_FINE;
    complain("--device is '%s': it must be opencl, or opencl:N with a number of tileproof info", text);
    return EXIT_USAGE;
}

static int open_here(void) {
    tp_error error = TP_ERROR_INIT;
    tp_opencl_device device;
    int code = open_index(number, NULL, &opened, &device, &error);
    if (code) return code;
    snprintf(name, sizeof name, "opencl:%s", device.name[0] ? device.name : "none");
    snprintf(absent, sizeof absent, "%s", device.why);
    snprintf(kind, sizeof kind, "%s", device.kind);
    if (device.usable)
        snprintf(host, sizeof host, "platform=%s\ndriver=%s\nkind=%s\nlocal_memory=%lld", device.platform, device.driver,
                 device.kind, (long long)device.local_bytes);
    bytes_of_it = (struct device_bytes){device.memory_bytes, device.allocation_bytes, device.local_bytes};
    snprintf(versions, sizeof versions, "opencl_kernels=%s", device.kernels);
    return EXIT_FINE;
}

int device_open(const struct options *options) {
    if (!options->device || opened) return EXIT_FINE;
    int code = parse(options->device);
    return code ? code : open_here();
}

/* What its driver says, asked by a child: 0, or what is wrong with it. */
static void ask_in_child(void) {
    int pipes[2];
    pid_t child = -1;
    snprintf(absent, sizeof absent, "no process could ask its driver");
    if (pipe(pipes)) return;
    fflush(stdout);
    if ((child = fork()) == 0) {
        int code = open_here();
        _exit(code || write(pipes[1], absent, sizeof absent) != (ssize_t)sizeof absent);
    }
    close(pipes[1]);
    if (child > 0) {
        if (read(pipes[0], absent, sizeof absent) != (ssize_t)sizeof absent)
            snprintf(absent, sizeof absent, "the process that asked its driver died");
        waitpid(child, NULL, 0);
    }
    close(pipes[0]);
}

int device_open_in_children(const struct options *options) {
    tp_error error = TP_ERROR_INIT;
    tp_opencl_device device;
    if (!options->device) return EXIT_FINE;
    int code = parse(options->device);
    if (code) return code;
    ask_in_child();
    return open_index(number, "no driver in this process", &opened, &device, &error);
}

int device_open_in_child(void) {
    if (!opened) return EXIT_FINE;
    opened = NULL; /* the parent's */
    return open_here();
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
const char *device_kind(void) {
    return kind;
}
struct device_bytes device_bytes(void) {
    return bytes_of_it;
}
static const char *device_host(void) {
    return host;
}
static const char *device_versions(void) {
    return versions;
}

static void list_here(void (*print)(int index, const tp_opencl_device *device)) {
    int count = 1;
    for (int i = 0; i < count; i++) {
        tp_opencl *cl = NULL;
        tp_opencl_device device;
        tp_error error = TP_ERROR_INIT;
        if (open_index(i, NULL, &cl, &device, &error)) return;
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
    print(0, &(tp_opencl_device){.name = "", .platform = "", .driver = "", .kind = "", .why = why});
}

static void print_text(int index, const tp_opencl_device *d) {
    char memory[32], local[32];
    if (!d->name[0] || !d->usable) {
        printf("opencl       %s%s%s\n", d->name, d->name[0] ? ": " : "", d->why);
        return;
    }
    char names[512];
    snprintf(names, sizeof names, "%s, %s, driver %s", d->name, d->platform, d->driver);
    print_wrapped(stdout, printf("opencl:%-5d ", index), 13, names);
    printf("             %s, memory %s, local %s, %lld units\n", d->kind, readable_bytes((double)d->memory_bytes, memory),
           readable_bytes((double)d->local_bytes, local), (long long)d->units);
}

static void print_json(int index, const tp_opencl_device *d) {
    printf("%s\n    {\"index\": %d, \"usable\": %s, \"name\": ", index ? "," : "", index, d->usable ? "true" : "false");
    print_json_text(stdout, d->name);
    printf(", \"platform\": ");
    print_json_text(stdout, d->platform);
    printf(", \"driver\": ");
    print_json_text(stdout, d->driver);
    printf(", \"kind\": \"%s\", \"why\": ", d->kind);
    print_json_text(stdout, d->why);
    printf(", \"memory_bytes\": %lld, \"allocation_bytes\": %lld, \"local_bytes\": %lld, \"units\": %lld}",
           (long long)d->memory_bytes, (long long)d->allocation_bytes, (long long)d->local_bytes, (long long)d->units);
}

static void list_text(void) {
    list(print_text);
}

static void list_json(void) {
    list(print_json);
}

#else

int device_open(const struct options *options) {
    if (!options->device) return EXIT_FINE;
    complain("--device is '%s': this tool was built without OpenCL's headers (Debian: opencl-c-headers)", options->device);
    return EXIT_USAGE;
}

int device_open_in_children(const struct options *options) {
    return device_open(options);
}
int device_open_in_child(void) {
    return EXIT_FINE;
}
void device_close(void) {}
const tp_backend *device_backend(void) {
    return NULL;
}
const char *device_name(void) {
    return "cpu";
}
static const char *device_host(void) {
    return "";
}
static const char *device_versions(void) {
    return "";
}
const char *device_absent(void) {
    return "";
}
const char *device_kind(void) {
    return "";
}
struct device_bytes device_bytes(void) {
    return (struct device_bytes){0, 0, 0};
}
static void list_text(void) {
    printf("opencl       not in this build\n");
}
static void list_json(void) {}

#endif

int device_list(int json, const char *record) {
    char label[1024];
    int code = evidence_label(record, label, sizeof label);
    if (code) return code;
    if (json) {
        printf(",\n  \"opencl\": {\"evidence\": ");
        print_json_text(stdout, label);
        printf(", \"devices\": [");
        list_json();
        printf("\n  ]}");
    } else {
        list_text();
        printf("             kernel opencl: %s\n", label);
    }
    return EXIT_FINE;
}

int device_say_evidence(const char *record) {
    char label[1024];
    int code = evidence_label(record, label, sizeof label);
    if (!code) printf("kernel opencl: %s\n", label);
    return code;
}

void device_identity(const tp_identity *here, tp_identity *now) {
    *now = *here;
    now->struct_size = sizeof *now;
    if (!device_backend()) return;
    now->device = device_name();
    now->host = device_host();
    now->versions = device_versions();
}

int device_number(void) {
    return device_backend() ? device_backend()->device : TP_CPU;
}

const tp_kernel_info *device_kernel_at(int index) {
    const tp_backend *backend = device_backend();
    return backend ? backend->kernel_at(backend->user, index) : tp_kernel_at(index);
}
