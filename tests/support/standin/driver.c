// A stand-in for the driver libraries of three vendors: their functions on host memory, with every call in a log.
//
// Kernels are run by a hook of the test. Modules are known by their bytes, which the test tells beforehand. Work is done
// at once, except during a capture, when it becomes the nodes of a graph. What real drivers refuse and our code must not
// do is refused: calls without a current context, waiting or freeing during a capture, a module for nobody's device.
//
// Built by tests/support/standin/library.py; WITHOUT_GRAPHS leaves the graph functions out, WITHOUT_LAUNCH the launch.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FINE = 0, INVALID_VALUE = 1, NO_MEMORY = 2, NOT_STARTED = 3, NO_DEVICE = 100, BAD_DEVICE = 101 };
enum { BAD_IMAGE = 200, BAD_CONTEXT = 201, BAD_HANDLE = 400, NOT_FOUND = 500, TOO_LARGE = 701 };
enum { SKIP = -1 };
enum { CAPTURING = 900, CAPTURE_BROKEN = 901 };
enum { MEMORY, HOST, MODULE, STREAM, EVENT, GRAPH, EXEC, CONTEXT, KINDS };

typedef int (*Hook)(const char *symbol, const uint32_t *grid, uint32_t threads, uint32_t shared, const uint64_t *values,
                    int count);

typedef struct Known {
    unsigned char *image;
    size_t size;
    char symbol[128];
    int count;
    struct Known *next;
} Known;

typedef struct Function {
    Known *known;
    const void *module;
    uint32_t shared_limit;
} Function;

typedef struct Node {
    enum { LAUNCH, COPY, FILL } kind;
    Function *function;
    uint32_t grid[3], threads, shared;
    uint64_t values[64];
    void *to;
    const void *from;
    int value;
    size_t size;
    struct Node *next;
} Node;

typedef struct Graph {
    Node *first, **end;
} Graph;

typedef struct Object {
    int kind, device;
    void *pointer, *raw;
    size_t size;
    Graph *capture;
    pthread_t capturer;
    int broken;
    double time;
    Known *known;
    struct Object *next;
} Object;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *log_text;
static size_t log_size, log_room;
static struct { char name[64]; int at, status, seen; } failures[16];
static int failure_count;
static Known *knowns;
static Object *objects;
static long live[KINDS];
static Hook hook;
static int devices = 1, started, major = 9, minor = 0, units = 132, warp = 32, shared_most = 227 << 10, misaligned, quiet;
static char arch[64] = "gfx1100", device_name[128] = "Stand-in";
static size_t total = (size_t)1 << 30, used;
static double clock_ms;
static __thread int current = -1;  // device whose context this thread has

// ---- what tests ask for --------------------------------------------------------------------------------------------

void standin_hook(Hook h) { hook = h; }

void standin_know(const unsigned char *image, size_t size, const char *symbol, int count) {
    Known *known = calloc(1, sizeof *known);
    known->image = malloc(size);
    memcpy(known->image, image, size);
    known->size = size, known->count = count, known->next = knowns;
    snprintf(known->symbol, sizeof known->symbol, "%s", symbol);
    knowns = known;
}

void standin_device(int count, const char *name, const char *gfx, int cc_major, int cc_minor, int lanes, size_t bytes,
                    int shared) {
    devices = count, major = cc_major, minor = cc_minor, warp = lanes, total = bytes, shared_most = shared;
    snprintf(device_name, sizeof device_name, "%s", name);
    snprintf(arch, sizeof arch, "%s", gfx);
}

void standin_misalign(int bytes) { misaligned = bytes; }

// the `at`-th call of `name` from now on (1 = the next) returns `status` without doing anything; SKIP: and says "fine"
void standin_fail(const char *name, int at, int status) {
    snprintf(failures[failure_count].name, sizeof failures[0].name, "%s", name);
    failures[failure_count].at = at, failures[failure_count].status = status, failures[failure_count].seen = 0;
    failure_count++;
}

// for timings: nothing is written down, nothing fails on demand
void standin_quiet(int on) { quiet = on; }

long standin_live(int kind) { return live[kind]; }

const char *standin_log(void) { return log_text ? log_text : ""; }

void standin_forget(void) {
    log_size = 0;
    if (log_text) log_text[0] = 0;
}

// ---- common to all functions ---------------------------------------------------------------------------------------

static int enter(const char *name) {
    int status = FINE;
    if (quiet) return status;
    pthread_mutex_lock(&lock);
    size_t length = strlen(name);
    if (log_size + length + 2 > log_room) log_text = realloc(log_text, log_room = 2 * log_room + length + 4096);
    memcpy(log_text + log_size, name, length), log_size += length;
    log_text[log_size++] = '\n', log_text[log_size] = 0;
    for (int i = 0; i < failure_count; i++)
        if (!strcmp(failures[i].name, name) && ++failures[i].seen == failures[i].at) status = failures[i].status;
    pthread_mutex_unlock(&lock);
    return status;
}

static int failed(int status) { return status == SKIP ? FINE : status; }

static Object *make(int kind, void *pointer) {
    Object *object = calloc(1, sizeof *object);
    object->kind = kind, object->pointer = pointer ? pointer : object, object->device = current;
    pthread_mutex_lock(&lock);
    object->next = objects, objects = object, live[kind]++;
    pthread_mutex_unlock(&lock);
    return object;
}

static Object *find(int kind, const void *pointer) {
    pthread_mutex_lock(&lock);
    Object *object = objects;
    while (object && !(object->kind == kind && object->pointer == pointer)) object = object->next;
    pthread_mutex_unlock(&lock);
    return object;
}

static int drop(Object *object) {
    if (!object) return BAD_HANDLE;
    pthread_mutex_lock(&lock);
    for (Object **at = &objects; *at; at = &(*at)->next)
        if (*at == object) {
            *at = object->next, live[object->kind]--;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(object);
    return FINE;
}

// a stream that this thread captures: nothing may be waited for or given back meanwhile
static Object *captured_here(void) {
    pthread_mutex_lock(&lock);
    Object *object = objects;
    while (object && !(object->kind == STREAM && object->capture && pthread_equal(object->capturer, pthread_self())))
        object = object->next;
    pthread_mutex_unlock(&lock);
    return object;
}

static int unsafe(void) {
    Object *stream = captured_here();
    if (stream) stream->broken = 1;
    return stream ? CAPTURING : FINE;
}

static int inside(const void *pointer, size_t size) {
    pthread_mutex_lock(&lock);
    Object *object = objects;
    while (object && !(object->kind == MEMORY && (char *)object->pointer <= (char *)pointer &&
                       (char *)pointer + size <= (char *)object->pointer + object->size))
        object = object->next;
    pthread_mutex_unlock(&lock);
    return object != NULL;
}

static int do_node(const Node *node) {
    if (node->kind == COPY) memmove(node->to, node->from, node->size);
    if (node->kind == FILL) memset(node->to, node->value, node->size);
    if (node->kind != LAUNCH) return FINE;
    if (!find(MODULE, node->function->module)) return BAD_HANDLE;
    Known *known = node->function->known;
    return hook ? hook(known->symbol, node->grid, node->threads, node->shared, node->values, known->count) : FINE;
}

static int submit(void *handle, const Node *node) {
    Object *stream = find(STREAM, handle);
    if (!stream || stream->device != current) return BAD_HANDLE;
    clock_ms += 1;
    if (!stream->capture) return do_node(node);
    Node *copy = malloc(sizeof *copy);
    *copy = *node, copy->next = NULL;
    *stream->capture->end = copy, stream->capture->end = &copy->next;
    return FINE;
}

// ---- what the exported functions do --------------------------------------------------------------------------------

static int s_init(unsigned flags) { return started = 1, devices ? FINE : NO_DEVICE; }
static int s_version(int *out) { return *out = 13010, FINE; }
static int s_device_count(int *out) { return started ? (*out = devices, devices ? FINE : NO_DEVICE) : NOT_STARTED; }
static int s_device_get(int *out, int index) { return index < devices ? (*out = index, FINE) : BAD_DEVICE; }
static int s_device_name(char *out, int size, int device) { return snprintf(out, size, "%s", device_name), FINE; }
static int s_device_set(int device) { return device < devices ? (current = device, FINE) : BAD_DEVICE; }

static int s_attribute(int *out, int number, int is_hip) {
    if (number == (is_hip ? 87 : 10)) return *out = warp, FINE;
    if (number == (is_hip ? 63 : 16)) return *out = units, FINE;
    if (number == (is_hip ? 74 : 97)) return *out = shared_most, FINE;
    if (number == 75 && !is_hip) return *out = major, FINE;
    if (number == 76 && !is_hip) return *out = minor, FINE;
    return INVALID_VALUE;
}

// the name of the architecture lies where HIP 7.1 has it
static int s_properties(void *out) {
    memset(out, 0, 1472);
    memcpy(out, device_name, strlen(device_name));
    memcpy((char *)out + 1160, arch, strlen(arch));
    return FINE;
}

static const char *words(int status) {
    static char text[64];
    if (status == NO_MEMORY) return "out of memory";
    if (status == NO_DEVICE) return "no device is detected";
    if (status == BAD_IMAGE) return "device kernel image is invalid";
    snprintf(text, sizeof text, "stand-in status %d", status);
    return text;
}
static int s_error_text(int status, const char **out) { return *out = words(status), FINE; }

static int s_context_retain(void **out, int device) {
    if (device >= devices) return BAD_DEVICE;
    Object *context = make(CONTEXT, NULL);
    context->device = device, *out = context;
    return FINE;
}
static int s_context_release(int device) {
    pthread_mutex_lock(&lock);
    Object *object = objects;
    while (object && !(object->kind == CONTEXT && object->device == device)) object = object->next;
    pthread_mutex_unlock(&lock);
    return drop(object);
}
static int s_context_set(void *context) {
    Object *object = find(CONTEXT, context);
    return object ? (current = object->device, FINE) : BAD_CONTEXT;
}

static int s_memory_info(size_t *unused, size_t *all) { return *unused = total - used, *all = total, FINE; }

static int s_alloc(void **out, size_t size) {
    int status = unsafe();
    if (status) return status;
    if (!size) return INVALID_VALUE;
    if (size > total - used) return NO_MEMORY;
    char *raw = aligned_alloc(256, (size + 511) & ~(size_t)255);
    if (!raw) return NO_MEMORY;
    Object *object = make(MEMORY, raw + misaligned);
    object->raw = raw, object->size = size, used += size, *out = object->pointer;
    memset(object->pointer, 0xA5, size < 65536 ? size : 65536);
    return FINE;
}
static int s_free(void *pointer) {
    int status = unsafe();
    Object *object = find(MEMORY, pointer);
    if (status || !object) return status ? status : BAD_HANDLE;
    used -= object->size;
    free(object->raw);
    return drop(object);
}
static int s_host_alloc(void **out, size_t size, unsigned flags) {
    int status = unsafe();
    if (status) return status;
    *out = calloc(1, size);
    make(HOST, *out);
    return FINE;
}
static int s_host_free(void *pointer) {
    int status = unsafe();
    if (status) return status;
    free(find(HOST, pointer) ? pointer : NULL);
    return drop(find(HOST, pointer));
}

static int copy(void *to, const void *from, size_t size, void *stream) {
    Node node = {.kind = COPY, .to = to, .from = from, .size = size};
    return submit(stream, &node);
}
static int s_upload(void *to, const void *from, size_t size, void *stream) {
    return inside(to, size) ? copy(to, from, size, stream) : INVALID_VALUE;
}
static int s_download(void *to, void *from, size_t size, void *stream) {
    return inside(from, size) ? copy(to, from, size, stream) : INVALID_VALUE;
}
static int s_copy(void *to, void *from, size_t size, void *stream) {
    return inside(from, size) && inside(to, size) ? copy(to, from, size, stream) : INVALID_VALUE;
}
static int s_fill(void *to, unsigned char value, size_t size, void *stream) {
    Node node = {.kind = FILL, .to = to, .value = value, .size = size};
    return inside(to, size) ? submit(stream, &node) : INVALID_VALUE;
}

static int s_stream_create(void **out, unsigned flags) { return *out = make(STREAM, NULL), FINE; }
static int s_stream_destroy(void *stream) { return drop(find(STREAM, stream)); }
static int s_stream_wait(void *stream) { return find(STREAM, stream) ? unsafe() : BAD_HANDLE; }

static int s_event_create(void **out, unsigned flags) { return *out = make(EVENT, NULL), FINE; }
static int s_event_record(void *event, void *stream) {
    Object *object = find(EVENT, event);
    return object && find(STREAM, stream) ? (object->time = clock_ms, FINE) : BAD_HANDLE;
}
static int s_event_wait(void *event) { return find(EVENT, event) ? FINE : BAD_HANDLE; }
static int s_event_elapsed(float *out, void *start, void *end) {
    Object *first = find(EVENT, start), *second = find(EVENT, end);
    return first && second ? (*out = (float)(second->time - first->time), FINE) : BAD_HANDLE;
}
static int s_event_destroy(void *event) { return drop(find(EVENT, event)); }

// byte by byte: an image says its own size to a real driver, and we must not read behind the one we are given
static int same(const unsigned char *image, const Known *known) {
    for (size_t i = 0; i < known->size; i++)
        if (image[i] != known->image[i]) return 0;
    return 1;
}
static int s_module_load(void **out, const void *image) {
    for (Known *known = knowns; known; known = known->next)
        if (same(image, known)) {
            Object *object = make(MODULE, NULL);
            object->known = known, *out = object;
            return FINE;
        }
    return BAD_IMAGE;
}
static int s_module_unload(void *module) { return drop(find(MODULE, module)); }
static int s_module_function(void **out, void *module, const char *name) {
    Object *object = find(MODULE, module);
    if (!object) return BAD_HANDLE;
    if (strcmp(object->known->symbol, name)) return NOT_FOUND;
    Function *function = calloc(1, sizeof *function);
    function->known = object->known, function->module = module, function->shared_limit = 48 << 10;
    return *out = function, FINE;
}
static int s_function_set(void *function, int number, int value) {
    if (number != 8 || value > shared_most) return INVALID_VALUE;
    return ((Function *)function)->shared_limit = value, FINE;
}

static int s_launch(void *function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                    unsigned shared, void *stream, void **parameters, void **extra, int free_limit) {
    Function *f = function;
    Node node = {.kind = LAUNCH, .function = f, .grid = {x, y, z}, .threads = tx, .shared = shared};
    if (!x || !y || !z || !tx || ty != 1 || tz != 1 || extra || y > 65535 || z > 65535) return INVALID_VALUE;
    if (tx > 1024 || shared > (free_limit ? (unsigned)free_limit : f->shared_limit)) return TOO_LARGE;
    for (int i = 0; i < f->known->count; i++) memcpy(&node.values[i], parameters[i], 8);
    return submit(stream, &node);
}

static int s_capture_begin(void *stream, int mode) {
    Object *object = find(STREAM, stream);
    if (!object || object->capture) return BAD_HANDLE;
    if (mode != 1) return INVALID_VALUE;  // the stand-in knows captures of one thread only
    object->capture = calloc(1, sizeof(Graph));
    object->capture->end = &object->capture->first;
    return object->capturer = pthread_self(), object->broken = 0, FINE;
}
static int s_capture_end(void *stream, void **out) {
    Object *object = find(STREAM, stream);
    if (!object || !object->capture) return BAD_HANDLE;
    Graph *graph = object->capture;
    object->capture = NULL, *out = NULL;
    if (object->broken) return CAPTURE_BROKEN;
    make(GRAPH, graph);
    return *out = graph, FINE;
}
static int s_graph_make(void **out, void *graph) {
    if (!find(GRAPH, graph)) return BAD_HANDLE;
    Object *exec = make(EXEC, NULL);
    exec->capture = graph;  // nodes are never freed: tests are short
    return *out = exec, FINE;
}
static int s_graph_destroy(void *graph) { return drop(find(GRAPH, graph)); }
static int s_graph_free(void *exec) { return drop(find(EXEC, exec)); }
static int s_graph_launch(void *exec, void *stream) {
    Object *object = find(EXEC, exec);
    if (!object || !find(STREAM, stream)) return BAD_HANDLE;
    int status = unsafe();
    for (Node *node = object->capture->first; node && !status; node = node->next) status = do_node(node);
    return status;
}

// ---- the three libraries -------------------------------------------------------------------------------------------

typedef void *P;
typedef uint64_t Q;
#define RUN(name, result)                                   \
    int status_ = enter(name);                              \
    return status_ ? failed(status_) : (result)
// calls that need a current context
#define HERE(name, result)                                  \
    int status_ = enter(name);                              \
    if (!status_ && current < 0) status_ = BAD_CONTEXT;     \
    return status_ ? failed(status_) : (result)
// HIP: a thread that never chose has device 0
#define HIP_HERE(name, result)                              \
    int status_ = enter(name);                              \
    if (current < 0) current = 0;                           \
    return status_ ? failed(status_) : (result)

#define PLAIN(C, f, v2)                                                                                               \
    int C##Init(unsigned a) { RUN(#C "Init", s_init(a)); }                                                            \
    int C##DriverGetVersion(int *a) { RUN(#C "DriverGetVersion", s_version(a)); }                                     \
    int C##DeviceGet(int *a, int b) { RUN(#C "DeviceGet", s_device_get(a, b)); }                                      \
    int C##DeviceGetName(char *a, int b, int c) { RUN(#C "DeviceGetName", s_device_name(a, b, c)); }                  \
    int C##MemcpyHtoDAsync##v2(Q a, P b, size_t n, P s) { f(#C "MemcpyHtoDAsync" #v2, s_upload((P)a, b, n, s)); }     \
    int C##MemcpyDtoHAsync##v2(P a, Q b, size_t n, P s) { f(#C "MemcpyDtoHAsync" #v2, s_download(a, (P)b, n, s)); }   \
    int C##MemcpyDtoDAsync##v2(Q a, Q b, size_t n, P s) { f(#C "MemcpyDtoDAsync" #v2, s_copy((P)a, (P)b, n, s)); }    \
    int C##MemsetD8Async(Q a, unsigned char v, size_t n, P s) { f(#C "MemsetD8Async", s_fill((P)a, v, n, s)); }       \
    int C##MemGetInfo##v2(size_t *a, size_t *b) { f(#C "MemGetInfo" #v2, s_memory_info(a, b)); }                      \
    int C##StreamDestroy##v2(P s) { f(#C "StreamDestroy" #v2, s_stream_destroy(s)); }                                 \
    int C##StreamSynchronize(P s) { f(#C "StreamSynchronize", s_stream_wait(s)); }                                    \
    int C##EventRecord(P e, P s) { f(#C "EventRecord", s_event_record(e, s)); }                                       \
    int C##EventSynchronize(P e) { f(#C "EventSynchronize", s_event_wait(e)); }                                       \
    int C##EventElapsedTime(float *a, P b, P c) { f(#C "EventElapsedTime", s_event_elapsed(a, b, c)); }               \
    int C##EventDestroy##v2(P e) { f(#C "EventDestroy" #v2, s_event_destroy(e)); }                                    \
    int C##ModuleLoadData(P *a, P b) { f(#C "ModuleLoadData", s_module_load(a, b)); }                                 \
    int C##ModuleUnload(P a) { f(#C "ModuleUnload", s_module_unload(a)); }                                            \
    int C##ModuleGetFunction(P *a, P b, char *c) { f(#C "ModuleGetFunction", s_module_function(a, b, c)); }

#define CUDA_LIKE(C)                                                                                                  \
    PLAIN(C, HERE, _v2)                                                                                               \
    int C##DeviceGetCount(int *a) { RUN(#C "DeviceGetCount", s_device_count(a)); }                                    \
    int C##DeviceGetAttribute(int *a, int b, int c) { RUN(#C "DeviceGetAttribute", s_attribute(a, b, 0)); }           \
    int C##GetErrorString(int a, const char **b) { return s_error_text(a, b); }                                       \
    int C##DevicePrimaryCtxRetain(P *a, int b) { RUN(#C "DevicePrimaryCtxRetain", s_context_retain(a, b)); }          \
    int C##DevicePrimaryCtxRelease_v2(int a) { RUN(#C "DevicePrimaryCtxRelease_v2", s_context_release(a)); }          \
    int C##CtxSetCurrent(P a) { RUN(#C "CtxSetCurrent", s_context_set(a)); }                                          \
    int C##MemAlloc_v2(P *a, size_t n) { HERE(#C "MemAlloc_v2", s_alloc(a, n)); }                                     \
    int C##MemFree_v2(Q a) { HERE(#C "MemFree_v2", s_free((P)a)); }                                                   \
    int C##MemHostAlloc(P *a, size_t n, unsigned b) { HERE(#C "MemHostAlloc", s_host_alloc(a, n, b)); }               \
    int C##MemFreeHost(P a) { HERE(#C "MemFreeHost", s_host_free(a)); }                                               \
    int C##StreamCreate(P *a, unsigned b) { HERE(#C "StreamCreate", s_stream_create(a, b)); }                         \
    int C##EventCreate(P *a, unsigned b) { HERE(#C "EventCreate", s_event_create(a, b)); }                            \
    int C##FuncSetAttribute(P a, int b, int c) { HERE(#C "FuncSetAttribute", s_function_set(a, b, c)); }

#define CUDA_GRAPHS(C)                                                                                                \
    int C##StreamBeginCapture_v2(P s, int m) { HERE(#C "StreamBeginCapture_v2", s_capture_begin(s, m)); }             \
    int C##StreamEndCapture(P s, P *g) { HERE(#C "StreamEndCapture", s_capture_end(s, g)); }                          \
    int C##GraphInstantiateWithFlags(P *e, P g, Q f) {                                                                \
        HERE(#C "GraphInstantiateWithFlags", f ? INVALID_VALUE : s_graph_make(e, g));                                 \
    }                                                                                                                 \
    int C##GraphDestroy(P g) { HERE(#C "GraphDestroy", s_graph_destroy(g)); }                                         \
    int C##GraphExecDestroy(P e) { HERE(#C "GraphExecDestroy", s_graph_free(e)); }                                    \
    int C##GraphLaunch(P e, P s) { HERE(#C "GraphLaunch", s_graph_launch(e, s)); }

#define LAUNCH(name, f, limit)                                                                                        \
    int name(P a, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz, unsigned m, P s, P *p,   \
             P *e) {                                                                                                  \
        f(#name, s_launch(a, x, y, z, tx, ty, tz, m, s, p, e, limit));                                                \
    }

CUDA_LIKE(cu)
CUDA_LIKE(mu)
PLAIN(hip, HIP_HERE, )
int hipGetDeviceCount(int *a) { RUN("hipGetDeviceCount", s_device_count(a)); }
int hipSetDevice(int a) { RUN("hipSetDevice", s_device_set(a)); }
int hipDeviceGetAttribute(int *a, int b, int c) { RUN("hipDeviceGetAttribute", s_attribute(a, b, 1)); }
int hipGetDevicePropertiesR0600(P a, int b) { RUN("hipGetDevicePropertiesR0600", s_properties(a)); }
const char *hipGetErrorString(int a) { return words(a); }
int hipMalloc(P *a, size_t n) { HIP_HERE("hipMalloc", s_alloc(a, n)); }
int hipFree(P a) { HIP_HERE("hipFree", s_free(a)); }
int hipHostMalloc(P *a, size_t n, unsigned b) { HIP_HERE("hipHostMalloc", s_host_alloc(a, n, b)); }
int hipHostFree(P a) { HIP_HERE("hipHostFree", s_host_free(a)); }
int hipStreamCreateWithFlags(P *a, unsigned b) { HIP_HERE("hipStreamCreateWithFlags", s_stream_create(a, b)); }
int hipEventCreateWithFlags(P *a, unsigned b) { HIP_HERE("hipEventCreateWithFlags", s_event_create(a, b)); }

#ifndef WITHOUT_LAUNCH
LAUNCH(cuLaunchKernel, HERE, 0)
LAUNCH(muLaunchKernel, HERE, 72 << 10)
LAUNCH(hipModuleLaunchKernel, HIP_HERE, 64 << 10)
#endif

#ifndef WITHOUT_GRAPHS
CUDA_GRAPHS(cu)
CUDA_GRAPHS(mu)
int hipStreamBeginCapture(P s, int m) { HIP_HERE("hipStreamBeginCapture", s_capture_begin(s, m)); }
int hipStreamEndCapture(P s, P *g) { HIP_HERE("hipStreamEndCapture", s_capture_end(s, g)); }
int hipGraphInstantiate(P *e, P g, P n, char *l, size_t z) {
    HIP_HERE("hipGraphInstantiate", n || l || z ? INVALID_VALUE : s_graph_make(e, g));
}
int hipGraphDestroy(P g) { HIP_HERE("hipGraphDestroy", s_graph_destroy(g)); }
int hipGraphExecDestroy(P e) { HIP_HERE("hipGraphExecDestroy", s_graph_free(e)); }
int hipGraphLaunch(P e, P s) { HIP_HERE("hipGraphLaunch", s_graph_launch(e, s)); }
#endif
