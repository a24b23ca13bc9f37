/* A CUDA runtime without a GPU: memory is handed out and kept account of, streams and events exist, kernels do nothing.
 *
 * PyTorch's host side (dispatch, allocator, random generator's state) runs on it as it is. Numbers in tensors mean
 * nothing, and neither do times; every request for memory does. Everything that is not here does nothing and succeeds
 * (see build.py). The device says that it is of compute capability 9.0; its memory is address space, taken when needed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver_types.h"

#define MEMORY (139ull << 30)
#define CAPABILITY_MAJOR 9
#define CAPABILITY_MINOR 0
#define PROCESSORS 132
#define THREADS_PER_BLOCK 1024
#define SHARED_PER_BLOCK 49152
#define SHARED_OPT_IN 232448
#define CUDA_VERSION_NUMBER 13000
#define OUT_OF_MEMORY 2
#define STEP (2ull << 20)

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? strtol(text, NULL, 10) : otherwise;
}

/* Memory: segments at rising addresses, as PyTorch's allocator asks for them. */

struct segment {
    char *start;
    size_t size;
    struct segment *next;
};

static struct segment *segments;
static size_t used;
static char *unused_address = (char *)0x600000000000;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int cudaMalloc(void **pointer, size_t size) {
    int result = OUT_OF_MEMORY;
    *pointer = NULL;
    pthread_mutex_lock(&lock);
    if (used + size <= MEMORY) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        char *start = mmap(unused_address, size, PROT_READ | PROT_WRITE, flags, -1, 0);
        struct segment *made = malloc(sizeof *made);
        if (start != MAP_FAILED && made != NULL) {
            *made = (struct segment){start, size, segments};
            segments = made;
            used += size;
            unused_address += (size + STEP - 1) / STEP * STEP;
            *pointer = start;
            result = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int cudaFree(void *pointer) {
    pthread_mutex_lock(&lock);
    for (struct segment **at = &segments; *at != NULL; at = &(*at)->next) {
        struct segment *found = *at;
        if (found->start == pointer) {
            *at = found->next;
            munmap(found->start, found->size);
            used -= found->size;
            free(found);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

static int on_device(const void *pointer) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (struct segment *at = segments; at != NULL && !found; at = at->next)
        found = (const char *)pointer >= at->start && (const char *)pointer < at->start + at->size;
    pthread_mutex_unlock(&lock);
    return found;
}

int cudaMemGetInfo(size_t *available, size_t *total) {
    *total = MEMORY;
    *available = MEMORY - used;
    return 0;
}

int cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    *pointer = malloc(size);
    return *pointer ? 0 : OUT_OF_MEMORY;
}

int cudaFreeHost(void *pointer) {
    free(pointer);
    return 0;
}

int cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    memset(attributes, 0, sizeof *attributes);
    attributes->type = on_device(pointer) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    attributes->devicePointer = (void *)pointer;
    return 0;
}

/* Small things are copied, as sizes and flags are; the rest of the device's memory stays as zero as it is. */
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    int into = on_device(to);
    if (!(into && (on_device(from) || size > STEP)))
        memcpy(to, from, size);
    return 0;
}

int cudaMemcpy(void *to, const void *from, size_t size, int kind) { return cudaMemcpyAsync(to, from, size, kind, NULL); }

/* The device. */

static __thread int current;

int cudaGetDeviceCount(int *count) {
    *count = (int)setting("HOLLOW_DEVICES", 1);
    return 0;
}

int cudaGetDevice(int *device) {
    *device = current;
    return 0;
}

int cudaSetDevice(int device) {
    current = device;
    return 0;
}

int cudaDriverGetVersion(int *version) {
    *version = CUDA_VERSION_NUMBER;
    return 0;
}

int cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

int cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "hollow");
    p->totalGlobalMem = MEMORY;
    p->major = CAPABILITY_MAJOR;
    p->minor = CAPABILITY_MINOR;
    p->multiProcessorCount = PROCESSORS;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = THREADS_PER_BLOCK;
    p->maxThreadsDim[2] = 64;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->sharedMemPerBlock = SHARED_PER_BLOCK;
    p->sharedMemPerBlockOptin = SHARED_OPT_IN;
    p->sharedMemPerMultiprocessor = SHARED_OPT_IN + 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->l2CacheSize = 50 << 20;
    p->textureAlignment = 512;
    p->unifiedAddressing = 1;
    return 0;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = CAPABILITY_MAJOR; break;
    case cudaDevAttrComputeCapabilityMinor: *value = CAPABILITY_MINOR; break;
    case cudaDevAttrMultiProcessorCount: *value = PROCESSORS; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = THREADS_PER_BLOCK; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = SHARED_PER_BLOCK; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = SHARED_OPT_IN; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    default: *value = 1;
    }
    return 0;
}

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return 0;
}

int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 0;
    return 0;
}

int cudaDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, length, "0000:%02d:00.0", device);
    return 0;
}

const char *cudaGetErrorName(int error) { return error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "hollow"; }
const char *cudaGetErrorString(int error) { return error == OUT_OF_MEMORY ? "out of memory" : "hollow"; }

/* Streams, events and kernels. */

#define HANDLE(function)                                                                                               \
    int function(void **handle) {                                                                                      \
        *handle = calloc(1, 256);                                                                                      \
        return 0;                                                                                                      \
    }

int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    *stream = calloc(1, 8);
    return 0;
}

int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }

int cudaStreamIsCapturing(void *stream, int *status) {
    *status = 0;
    return 0;
}

int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id) {
    *status = 0;
    return 0;
}

int cudaStreamGetPriority(void *stream, int *priority) {
    *priority = 0;
    return 0;
}

HANDLE(cudaEventCreate)

int cudaEventCreateWithFlags(void **event, unsigned flags) { return cudaEventCreate(event); }

int cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
    *milliseconds = 0.01f;
    return 0;
}

int cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = THREADS_PER_BLOCK;
    attributes->ptxVersion = attributes->binaryVersion = 10 * CAPABILITY_MAJOR + CAPABILITY_MINOR;
    attributes->numRegs = 32;
    return 0;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *f, int size, size_t shared,
                                                           unsigned flags) {
    *blocks = 2;
    return 0;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *f, int size, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, size, shared, 0);
}

int cudaGetSymbolAddress(void **address, const void *symbol) {
    *address = (void *)symbol;
    return 0;
}

int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     int *found) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *function = driver ? dlsym(driver, name) : NULL;
    if (*function == NULL && driver != NULL)
        *function = dlsym(driver, "hollow_nothing");
    if (found != NULL)
        *found = 0;
    return *function ? 0 : 1;
}

void **__cudaRegisterFatBinary(void *binary) {
    static void *handle[4];
    return handle;
}

int __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)function;
    return 0;
}

int __cudaPopCallConfiguration(unsigned *grid, unsigned *block, size_t *shared, void **stream) {
    for (int axis = 0; axis < 3; axis++)
        grid[axis] = block[axis] = 1;
    *shared = 0;
    *stream = NULL;
    return 0;
}

/* cuBLAS and cuDNN: handles, and workspaces of the size that one asks for. */

HANDLE(cublasCreate_v2)
HANDLE(cublasLtMatmulDescCreate)
HANDLE(cublasLtMatrixLayoutCreate)
HANDLE(cublasLtMatmulPreferenceCreate)
HANDLE(cudnnCreate)
HANDLE(cudnnCreateTensorDescriptor)
HANDLE(cudnnCreateFilterDescriptor)
HANDLE(cudnnCreateConvolutionDescriptor)
HANDLE(cudnnCreateDropoutDescriptor)
HANDLE(cudnnCreateRNNDescriptor)
HANDLE(cudnnCreateRNNDataDescriptor)

int cublasGetPointerMode_v2(void *handle, int *mode) {
    *mode = 0;
    return 0;
}

int cublasGetMathMode(void *handle, int *mode) {
    *mode = 0;
    return 0;
}

size_t cublasLtGetVersion(void) { return 130100; }

struct heuristic {
    char algorithm[64];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *what, void *a, void *b, void *c, void *d, void *wanted, int most,
                                   struct heuristic *found, int *count) {
    memset(found, 0, sizeof *found);
    *count = 1;
    return 0;
}

/* Its version: of this major number, and not older than the one that PyTorch was built with. */
int cudnnGetProperty(int which, int *value) {
    *value = which == 0 ? 9 : which == 1 ? 99 : 0;
    return 0;
}

size_t cudnnGetVersion(void) { return 99900; }
size_t cudnnGetCudartVersion(void) { return CUDA_VERSION_NUMBER; }
const char *cudnnGetErrorString(int error) { return "hollow"; }

static size_t convolution_workspace(void) { return (size_t)setting("HOLLOW_WORKSPACE", 0); }

struct performance {
    int algorithm;
    int status;
    float time;
    size_t memory;
    int deterministic;
    int math;
    int reserved[3];
};

#define CONVOLUTION(name)                                                                                              \
    int cudnnGetConvolution##name##Algorithm_v7(void *handle, void *a, void *b, void *c, void *d, int most,            \
                                                int *count, struct performance *found) {                               \
        memset(found, 0, sizeof *found);                                                                               \
        found->algorithm = found->deterministic = *count = 1;                                                          \
        found->memory = convolution_workspace();                                                                       \
        return 0;                                                                                                      \
    }                                                                                                                  \
    int cudnnGetConvolution##name##WorkspaceSize(void *handle, void *a, void *b, void *c, void *d, int algorithm,      \
                                                 size_t *size) {                                                       \
        *size = convolution_workspace();                                                                               \
        return 0;                                                                                                      \
    }

CONVOLUTION(Forward)
CONVOLUTION(BackwardData)
CONVOLUTION(BackwardFilter)

int cudnnDropoutGetStatesSize(void *handle, size_t *size) {
    *size = 1024;
    return 0;
}

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int ops, void *x, void *z, void *y,
                                                             void *scale, void *activation, size_t *size) {
    *size = 0;
    return 0;
}

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int ops, void *x, void *y, void *dy,
                                                      void *dz, void *dx, void *scale, void *activation, size_t *size) {
    *size = 0;
    return 0;
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int ops, void *activation, void *x,
                                                         size_t *size) {
    *size = 0;
    return 0;
}
