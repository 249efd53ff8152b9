/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int tp__ocl_driver_open(tp__ocl_driver *driver, const char *library, char *why, size_t size) {
    const char *name = library != NULL ? library : "libOpenCL.so.1";
    *driver = (tp__ocl_driver){.library = dlopen(name, RTLD_NOW | RTLD_LOCAL)};
    if (driver->library == NULL) {
        const char *said = dlerror();
        int missing = said == NULL || strstr(said, "No such file") != NULL;
        if (missing)
            snprintf(why, size, "%s not found", name);
        else
            snprintf(why, size, "%s not loaded: %s", name, said);
        return -1;
    }
#define CALL(call)                                                                                                               \
    driver->call = (__typeof__(driver->call))(uintptr_t)dlsym(driver->library, #call);                                           \
    if (driver->call == NULL) {                                                                                                  \
        snprintf(why, size, "%s has no %s: OpenCL 1.2 is needed", name, #call);                                                  \
        return -1;                                                                                                               \
    }
    TP__CL_CALLS(CALL)
#undef CALL
    return 0;
}

uint64_t tp__ocl_hash(const void *bytes, size_t size, uint64_t hash) {
    if (hash == 0) hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

const char *tp__ocl_name(cl_int code) {
#define NAME(name)                                                                                                               \
    case name: return #name;
    switch (code) {
        NAME(CL_SUCCESS)
        NAME(CL_DEVICE_NOT_FOUND)
        NAME(CL_DEVICE_NOT_AVAILABLE)
        NAME(CL_COMPILER_NOT_AVAILABLE)
        NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE)
        NAME(CL_OUT_OF_RESOURCES)
        NAME(CL_OUT_OF_HOST_MEMORY)
        NAME(CL_PROFILING_INFO_NOT_AVAILABLE)
        NAME(CL_MEM_COPY_OVERLAP)
        NAME(CL_BUILD_PROGRAM_FAILURE)
        NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
        NAME(CL_INVALID_VALUE)
        NAME(CL_INVALID_PLATFORM)
        NAME(CL_INVALID_DEVICE)
        NAME(CL_INVALID_CONTEXT)
        NAME(CL_INVALID_QUEUE_PROPERTIES)
        NAME(CL_INVALID_COMMAND_QUEUE)
        NAME(CL_INVALID_MEM_OBJECT)
        NAME(CL_INVALID_BINARY)
        NAME(CL_INVALID_BUILD_OPTIONS)
        NAME(CL_INVALID_PROGRAM)
        NAME(CL_INVALID_PROGRAM_EXECUTABLE)
        NAME(CL_INVALID_KERNEL_NAME)
        NAME(CL_INVALID_KERNEL)
        NAME(CL_INVALID_ARG_INDEX)
        NAME(CL_INVALID_ARG_VALUE)
        NAME(CL_INVALID_ARG_SIZE)
        NAME(CL_INVALID_KERNEL_ARGS)
        NAME(CL_INVALID_WORK_DIMENSION)
        NAME(CL_INVALID_WORK_GROUP_SIZE)
        NAME(CL_INVALID_WORK_ITEM_SIZE)
        NAME(CL_INVALID_GLOBAL_OFFSET)
        NAME(CL_INVALID_EVENT_WAIT_LIST)
        NAME(CL_INVALID_EVENT)
        NAME(CL_INVALID_OPERATION)
        NAME(CL_INVALID_BUFFER_SIZE)
        NAME(CL_INVALID_GLOBAL_WORK_SIZE)
    case -1001: return "CL_PLATFORM_NOT_FOUND_KHR";
    default: return "an unknown error";
    }
#undef NAME
}

tp_status tp__ocl_fail(tp_error *error, tp_status status, const char *format, ...) {
    if (error == NULL) return status;
    va_list arguments;
    va_start(arguments, format);
    error->status = status;
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return status;
}

tp_status tp__ocl_status(tp_error *error, const char *call, cl_int code) {
    if (code == CL_SUCCESS) return TP_OK;
    int memory = code == CL_OUT_OF_HOST_MEMORY || code == CL_MEM_OBJECT_ALLOCATION_FAILURE;
    return tp__ocl_fail(error, memory ? TP_NO_MEMORY : TP_DEVICE_FAILED, "%s gave %s (%d)", call, tp__ocl_name(code), code);
}
