/* The driver's library that goes with runtime.c: one context for each device, always active. */
#include <stddef.h>
#include <string.h>

int hollow_nothing(void) { return 0; }

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)(size_t)(device + 1);
    return 0;
}

int cuCtxGetCurrent(void **context) { return cuDevicePrimaryCtxRetain(context, 0); }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1; /* compute capability: major, minor */
    return 0;
}

int cuGetErrorString(int error, const char **text) {
    *text = "hollow";
    return 0;
}

int cuPointerGetAttribute(void *data, int attribute, unsigned long long pointer) {
    memset(data, 0, sizeof(int));
    return 0;
}
